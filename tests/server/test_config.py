from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from server.config import AGGREGATORS, STRATEGIES, ConfigError, RunConfig

ROOT = Path(__file__).parents[2]
DEFAULTS = RunConfig().to_run_config()


def test_the_defaults_are_those_of_the_app() -> None:
    app = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert list(app["config"].items()) == list(DEFAULTS.items())
    assert {k: type(v) for k, v in app["config"].items()} == {
        k: type(v) for k, v in DEFAULTS.items()
    }


def test_parsing_inverts_to_run_config() -> None:
    changed: dict[str, Any] = {"strategy": "adcs", "theta": 0.25, "seed": 9, "reuse-update": False}
    config = RunConfig.parse(changed)
    assert (config.strategy, config.theta, config.seed, config.reuse_update) == (
        "adcs",
        0.25,
        9,
        False,
    )
    assert RunConfig.parse(config.to_run_config()) == config
    assert RunConfig.parse({}) == RunConfig()


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().seed = 3  # type: ignore[misc]


def test_whole_numbers_serve_where_numbers_are_due() -> None:
    config = RunConfig.parse({"theta": 1, "deadline": 5})
    assert (config.theta, config.deadline) == (1.0, 5.0)
    assert isinstance(config.theta, float)


def refused(values: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse(values)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_an_unknown_key_is_named_beside_all_that_are_known() -> None:
    text = refused({"clients-per-rund": 3})
    assert text.startswith(
        "clients-per-rund = 3: unknown key; did you mean clients-per-round? allowed are "
    )
    assert set(DEFAULTS) <= set(re.split(r"[ ,]+", text))


@pytest.mark.parametrize("key", DEFAULTS)
def test_a_value_of_another_type_is_named(key: str) -> None:
    wrong: list[Any] = {
        bool: [1, 0, "true", 1.0],
        int: [True, 1.5, "1", float("nan")],
        float: [True, "0.5", float("nan")],
        str: [1, True, 0.5],
    }[type(DEFAULTS[key])]
    for value in wrong:
        shown = "nan" if value != value else repr(value)
        assert refused({key: value}).startswith(f"{key} = {shown}: must be ")


BAD: list[tuple[str, Any, str]] = [
    ("strategy", "sckm", ", ".join(STRATEGIES)),
    ("aggregator", "FedAvg", ", ".join(AGGREGATORS)),
    ("num-server-rounds", 0, "at least 1"),
    ("clients-per-round", 0, "at least 1"),
    ("clients-per-round", -3, "at least 1"),
    ("candidate-fraction", 0.0, "in (0, 1]"),
    ("candidate-fraction", 1.01, "in (0, 1]"),
    ("min-clients", -1, "at least 0"),
    ("weighting", "size", "one of examples, uniform"),
    ("sketch-ratio", 0.0, "in (0, 1]"),
    ("sketch-ratio", -0.005, "in (0, 1]"),
    ("sketch-ratio", 1.5, "in (0, 1]"),
    ("sketch-kind", "top", "one of subsample, projection"),
    ("sketch-of", "model", "one of update, gradient"),
    ("layer-weighting", "", "one of entries, layers"),
    ("normalisation", "l2", "one of none, unit, scale"),
    ("age-weight", -1.0, "at least 0"),
    ("min-clusters", 0, "at least 1"),
    ("k-medoids", "pam", "one of onebatch, sklearn-extra"),
    ("theta", 1.2, "in [0, 1]"),
    ("theta", -0.1, "in [0, 1]"),
    ("kernel-every", 0, "at least 1"),
    ("quality", "accuracy", "one of loss, norm, mixed"),
    ("gamma", 2.0, "in [0, 1]"),
    ("seed", -1, "at least 0"),
    ("seed", 2**63, "at most 64 bits"),
    ("dataset", "mnist", "digits"),
    ("dataset", "module:", "or module:function"),
    ("model", "resnet", "softmax, cnn"),
    ("partitioner", "random", "one of "),
    ("shards-per-client", 0, "at least 1"),
    ("alpha", 0.0, "above 0"),
    ("local-steps", 0, "at least 1"),
    ("batch-size", 0, "at least 1"),
    ("learning-rate", 0.0, "above 0"),
    ("learning-rate", float("inf"), "finite"),
    ("client-threads", 0, "in [1, 256]"),
    ("server-learning-rate", -0.1, "at least 0"),
    ("server-momentum", 1.0, "in [0, 1)"),
    ("malicious-clients", -1, "at least 0"),
    ("evaluate-every", -1, "at least 0"),
    ("replacements", -1, "at least 0"),
    ("quorum", 1.5, "in [0, 1]"),
    ("deadline", 0.0, "above 0"),
    ("deadline", float("inf"), "finite"),
    ("grace", -1.0, "at least 0"),
    ("max-norm-ratio", 1.0, "above 1"),
    ("checkpoint-every", -1, "at least 0"),
    ("resume", "always", "one of never, auto"),
]


@pytest.mark.parametrize(("key", "value", "allowed"), BAD)
def test_a_value_out_of_range_is_named_with_what_is_allowed(
    key: str, value: Any, allowed: str
) -> None:
    text = refused({key: value})
    assert text.startswith(f"{key} = {value!r}: must be ")
    assert allowed in text


def test_every_key_with_a_range_has_a_bad_value_above() -> None:
    free = {
        f.name.replace("_", "-")
        for f in dataclasses.fields(RunConfig)
        if f.metadata["rule"].allowed == "any text"
    }
    later = {"variant", "warmup", "refit-every", "round-seconds"}  # of the baselines
    assert set(DEFAULTS) - free - later == {key for key, _, _ in BAD}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"min-clusters": 4, "clients-per-round": 3},
            "min-clusters = 4: must be at most clients-per-round = 3",
        ),
        (
            {"aggregator": "krum", "server-learning-rate": 0.5},
            "server-learning-rate = 0.5: krum has none; allowed is 0, or an aggregator of "
            "fedavg, fedavgm, fedadam, fedadagrad, fedyogi",
        ),
        ({"resume": "auto"}, "resume = 'auto': needs out, the folder of the run to go on with"),
    ],
)
def test_values_that_do_not_go_together(values: dict[str, Any], message: str) -> None:
    assert refused(values) == message


def test_the_sketch() -> None:
    config = RunConfig.parse(
        {"sketch-layers": "conv*, head.weight", "sketch-ratio": 0.1, "seed": 4}
    )
    spec = config.sketch()
    assert (spec.layers, spec.ratio, spec.seed) == (("conv*", "head.weight"), 0.1, 4)
    assert RunConfig().sketch().layers == ()
