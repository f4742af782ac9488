"""The run config as one frozen object, checked once."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from server.errors import UserError
from strategies.sketch import SketchSpec
from tasks.config import MODELS
from tasks.data import DATASETS
from tasks.partition import PARTITIONERS

__all__ = ["AGGREGATORS", "STRATEGIES", "ConfigError", "RunConfig"]

Scalar = bool | int | float | str

STRATEGIES = (
    "sckm-select",
    "sckm-cluster",
    "adcs",
    "uniform",
    "round-robin",
    "power-of-choice",
    "ocs",
    "afl",
    "divfl",
    "fedcor",
    "gpfl",
    "kmeans-l2",
    "cosine-diversity",
    "static-dpp",
    "oort",
    "fedcs",
)
AGGREGATORS = (
    "fedavg",
    "fedavgm",
    "fedadam",
    "fedadagrad",
    "fedyogi",
    "fedmedian",
    "fedtrimmedavg",
    "krum",
    "multikrum",
    "bulyan",
)
_WITH_SERVER_RATE = ("fedavg", "fedavgm", "fedadam", "fedadagrad", "fedyogi")


class ConfigError(UserError):
    """A value in the run config that cannot be used: names key, value and what is allowed."""


@dataclass(frozen=True)
class _Rule:
    allowed: str
    holds: Callable[[Any], bool]


def _one_of(*names: str, or_function: bool = False) -> _Rule:
    listed = ", ".join(names) + (", or module:function" if or_function else "")
    return _Rule(
        f"one of {listed}",
        lambda value: value in names or (or_function and ":" in value.strip(":")),
    )


def _at_least(least: float) -> _Rule:
    return _Rule(f"at least {least:g}", lambda value: least <= value < math.inf)


_RATE = _Rule("above 0 and at most 1e30", lambda value: 0 < value <= 1e30)  # fits float32
_THREADS = _Rule("in [1, 256]", lambda value: 1 <= value <= 256)
_ABOVE_0 = _Rule("above 0", lambda value: 0 < value < math.inf)
_ABOVE_1 = _Rule("above 1", lambda value: value > 1)
_SHARE = _Rule("in [0, 1]", lambda value: 0 <= value <= 1)
_POSITIVE_SHARE = _Rule("in (0, 1]", lambda value: 0 < value <= 1)
_BELOW_1 = _Rule("in [0, 1)", lambda value: 0 <= value < 1)
_ANY = _Rule("any text", lambda value: True)


def _key(default: Scalar, rule: _Rule, meaning: str) -> Any:
    return field(default=default, metadata={"rule": rule, "meaning": meaning})


@dataclass(frozen=True)
class RunConfig:
    """Everything a run depends on, one field per run-config key (`clients-per-round` and so on).

    `parse` reads Flower's run config; `to_run_config` is its inverse. The fields' meanings are in
    their metadata, from which `muster keys` and `docs/configuration.md` are made.
    """

    strategy: str = _key("sckm-select", _one_of(*STRATEGIES), "how the cohort is picked")
    aggregator: str = _key("fedavg", _one_of(*AGGREGATORS), "Flower strategy that aggregates")
    num_server_rounds: int = _key(30, _at_least(1), "rounds")
    clients_per_round: int = _key(3, _at_least(1), "cohort size, at most the number of clients")
    candidate_fraction: float = _key(
        1.0, _POSITIVE_SHARE, "share of the clients asked in the roll call"
    )
    min_clients: int = _key(0, _at_least(0), "clients to wait for before round 1; 0: the cohort")
    weighting: str = _key(
        "examples", _one_of("examples", "uniform"), "weigh updates by examples or equally"
    )
    reuse_update: bool = _key(True, _ANY, "phase 2 sends what phase 1 computed")
    sketch_ratio: float = _key(0.005, _POSITIVE_SHARE, "share of the entries in a sketch")
    sketch_kind: str = _key(
        "subsample", _one_of("subsample", "projection"), "entries, or signed sums of them"
    )
    sketch_layers: str = _key("all", _ANY, "all, or names or patterns separated by commas")
    sketch_of: str = _key(
        "update", _one_of("update", "gradient"), "the local update or its first gradient"
    )
    layer_weighting: str = _key(
        "entries", _one_of("entries", "layers"), "SCKM: layers count by their entries or equally"
    )
    normalisation: str = _key(
        "none", _one_of("none", "unit", "scale"), "SCKM: of sketches before scoring"
    )
    age_weight: float = _key(0.0, _at_least(0), "SCKM: weight of the rounds waited (0: the paper)")
    min_clusters: int = _key(1, _at_least(1), "SCKM-Cluster: C_min")
    k_medoids: str = _key(
        "onebatch", _one_of("onebatch", "sklearn-extra"), "SCKM-Cluster: library that clusters"
    )
    theta: float = _key(0.8, _SHARE, "ADCS: 0 is diversity alone, 1 is quality alone")
    kernel_every: int = _key(1, _at_least(1), "ADCS: rounds between kernels (R)")
    quality: str = _key(
        "loss", _one_of("loss", "norm", "mixed"), "ADCS: local loss, update norm, or loss and speed"
    )
    gamma: float = _key(0.5, _SHARE, "ADCS: weight of speed in a mixed quality")
    variant: str = _key(
        "pow-d", _one_of("pow-d", "cpow-d", "rpow-d"), "power-of-choice: loss that counts"
    )
    probabilistic: bool = _key(False, _ANY, "OCS: the original instead of the largest norms")
    no_overheads: bool = _key(False, _ANY, "DivFL: no roll call, gradients of the last training")
    warmup: int = _key(15, _at_least(1), "FedCor: rounds of uniform cohorts")
    refit_every: int = _key(10, _at_least(1), "FedCor: rounds between fits")
    round_seconds: float = _key(
        0.0, _at_least(0), "FedCS: longest round wanted, in seconds; 0: no limit"
    )
    seed: int = _key(0, _at_least(0), "of everything random")
    dataset: str = _key("digits", _one_of(*DATASETS, or_function=True), "what is learned")
    data_dir: str = _key("", _ANY, "where the data set is, if not in its usual place")
    model: str = _key("softmax", _one_of(*MODELS, or_function=True), "what learns")
    partitioner: str = _key("shards", _one_of(*PARTITIONERS), "how data is split over clients")
    shards_per_client: int = _key(2, _at_least(1), "shards: label shards per client")
    alpha: float = _key(0.5, _ABOVE_0, "dirichlet: concentration, small is skewed")
    local_steps: int = _key(10, _at_least(1), "mini-batches a client trains on per round")
    batch_size: int = _key(32, _at_least(1), "examples per mini-batch")
    learning_rate: float = _key(0.1, _RATE, "of the clients' SGD")
    client_threads: int = _key(1, _THREADS, "CPU threads a client trains with")
    server_learning_rate: float = _key(
        0.0, _at_least(0), "of the aggregator; 0: its own default (1.0, or 0.1 for fedadam, ...)"
    )
    server_momentum: float = _key(0.9, _BELOW_1, "fedavgm: momentum")
    malicious_clients: int = _key(0, _at_least(0), "krum, multikrum, bulyan: how many to expect")
    evaluate_every: int = _key(1, _at_least(0), "rounds between evaluations; 0: none")
    replacements: int = _key(0, _at_least(0), "picked clients that may be replaced per round")
    quorum: float = _key(0.5, _SHARE, "share of the clients asked that must answer")
    deadline: float = _key(600.0, _ABOVE_0, "seconds a reply may take")
    grace: float = _key(60.0, _at_least(0), "seconds without a reply after the quorum is reached")
    max_norm_ratio: float = _key(
        1e4, _ABOVE_1, "sketches longer than the median by this factor are left out"
    )
    checkpoint_every: int = _key(1, _at_least(0), "rounds between checkpoints; 0: none")
    resume: str = _key("never", _one_of("never", "auto"), "go on from the last checkpoint in out")
    out: str = _key("", _ANY, "folder for the results; empty: a new one under runs/")

    @classmethod
    def described(cls) -> list[tuple[str, Scalar, str, str]]:
        """Return key, default, what is allowed and meaning of each field, in order."""
        rows: list[tuple[str, Scalar, str, str]] = []
        for spec in dataclasses.fields(cls):
            rule = "true or false" if spec.type == "bool" else spec.metadata["rule"].allowed
            key = spec.name.replace("_", "-")
            default = cast("Scalar", spec.default)
            rows.append((key, default, rule, spec.metadata["meaning"]))
        return rows

    @classmethod
    def parse(cls, values: Mapping[str, Scalar]) -> RunConfig:
        """Read and check a run config; keys left out have their defaults.

        Raises
        ------
        ConfigError
            On an unknown key, a value of the wrong type or out of range.
        """
        fields = {f.name.replace("_", "-"): f for f in dataclasses.fields(cls)}
        checked: dict[str, Any] = {}
        for key, value in values.items():
            if key not in fields:
                near = difflib.get_close_matches(key, fields, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                raise ConfigError(
                    f"{key} = {value!r}: unknown key; {hint}allowed are {', '.join(fields)}"
                )
            checked[fields[key].name] = _checked(key, value, fields[key])
        config = cls(**checked)
        config._check_together()
        return config

    def to_run_config(self) -> dict[str, Scalar]:
        """Return the values by key."""
        return {k.replace("_", "-"): v for k, v in dataclasses.asdict(self).items()}

    def sketch(self) -> SketchSpec:
        """Return what a sketch is."""
        names = () if self.sketch_layers == "all" else self.sketch_layers.split(",")
        return SketchSpec(
            ratio=self.sketch_ratio,
            kind=self.sketch_kind,  # type: ignore[arg-type]
            layers=tuple(name.strip() for name in names),
            seed=self.seed,
        )

    def _check_together(self) -> None:
        if self.min_clusters > self.clients_per_round:
            raise ConfigError(
                f"min-clusters = {self.min_clusters}: must be at most clients-per-round = "
                f"{self.clients_per_round}"
            )
        if self.server_learning_rate and self.aggregator not in _WITH_SERVER_RATE:
            raise ConfigError(
                f"server-learning-rate = {self.server_learning_rate:g}: {self.aggregator} has "
                f"none; allowed is 0, or an aggregator of {', '.join(_WITH_SERVER_RATE)}"
            )
        least = 4 * self.malicious_clients + 3
        if self.aggregator == "bulyan" and self.clients_per_round < least:
            raise ConfigError(
                f"clients-per-round = {self.clients_per_round}: bulyan needs at least {least} "
                f"with malicious-clients = {self.malicious_clients}"
            )
        if self.resume == "auto" and not self.out:
            raise ConfigError("resume = 'auto': needs out, the folder of the run to go on with")


def _checked(key: str, value: object, spec: dataclasses.Field[Any]) -> Scalar:
    kind = type(spec.default)
    rule: _Rule = spec.metadata["rule"]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind:
        allowed = "" if kind is bool else f" {rule.allowed}"
        raise ConfigError(f"{key} = {value!r}: must be {_KINDS[kind]}{allowed}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(f"{key} = {value}: must be a whole number of at most 64 bits")
    if isinstance(value, float) and math.isnan(value):
        raise ConfigError(f"{key} = nan: must be a number {rule.allowed}")
    if not rule.holds(value):
        finite = " and finite" if value == math.inf else ""
        raise ConfigError(f"{key} = {value!r}: must be {rule.allowed}{finite}")
    assert isinstance(value, bool | int | float | str)
    return value


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text in quotes,"}
