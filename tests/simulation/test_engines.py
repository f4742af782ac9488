import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from server.config import ConfigError, RunConfig
from server.results import load_run
from simulation.engines import run_inline, run_ray, with_absolute_paths

QUICK = RunConfig(num_server_rounds=3, local_steps=2)


def silent(line: str) -> None:
    pass


@pytest.mark.slow
@pytest.mark.parametrize("model", ["softmax", "cnn"])
def test_ray_and_inline_agree_bit_for_bit(tmp_path: Path, model: str) -> None:
    folders = []
    for name, engine in (("inline", partial(run_inline, batching=False)), ("ray", run_ray)):
        config = dataclasses.replace(QUICK, model=model, out=str(tmp_path / name))
        folders.append(engine(config, 10, tell=silent))
    inline, ray = folders
    for key in ("selected", "scores", "metrics", "bytes-up", "bytes-down"):
        assert [line[key] for line in load_run(inline).rounds] == [
            line[key] for line in load_run(ray).rounds
        ]
    assert (inline / "model.safetensors").read_bytes() == (ray / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("model", "strategy", "reuse"),
    [
        ("cnn", "sckm-select", True),
        pytest.param("cnn", "sckm-select", False, marks=pytest.mark.slow),
        pytest.param("cnn", "uniform", True, marks=pytest.mark.slow),
        pytest.param("softmax", "adcs", True, marks=pytest.mark.slow),
        pytest.param("softmax", "sckm-select", False, marks=pytest.mark.slow),
    ],
)
def test_worker_processes_change_nothing(
    tmp_path: Path, model: str, strategy: str, reuse: bool
) -> None:
    folders = []
    for workers in (1, 2):
        config = dataclasses.replace(
            QUICK,
            model=model,
            strategy=strategy,
            reuse_update=reuse,
            clients_per_round=5,
            out=str(tmp_path / str(workers)),
        )
        options = {"batching": False, "workers": workers, "tell": silent}
        folders.append(run_inline(config, 10, **options))  # type: ignore[arg-type]
    one, two = (load_run(folder) for folder in folders)
    assert (one.config["workers"], two.config["workers"]) == (1, 2)
    for before, after in zip(one.rounds, two.rounds, strict=True):
        assert before.keys() == after.keys()
        for key in before.keys() - {"seconds"}:
            assert before[key] == after[key], key
    models = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert models[0] == models[1]


def test_the_number_of_workers_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="workers = 0: must be at least 1"):
        run_inline(QUICK, 10, workers=0, tell=silent)


def test_same_seed_same_run_another_seed_another(tmp_path: Path) -> None:
    models = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        config = dataclasses.replace(QUICK, out=str(tmp_path / name), seed=seed)
        models.append((run_inline(config, 10, tell=silent) / "model.safetensors").read_bytes())
    assert models[0] == models[1]
    assert models[0] != models[2]


@pytest.mark.parametrize(
    ("strategy", "variant"),
    [
        ("sckm-select", "pow-d"),
        ("adcs", "pow-d"),
        ("uniform", "pow-d"),
        ("power-of-choice", "pow-d"),
        ("power-of-choice", "cpow-d"),
    ],
)
def test_batching_changes_a_run_by_no_more_than_rounding(
    tmp_path: Path, strategy: str, variant: str
) -> None:
    runs, models = [], []
    for name, batching in (("batched", True), ("serial", False)):
        config = dataclasses.replace(
            QUICK, out=str(tmp_path / name), strategy=strategy, variant=variant
        )
        runs.append(load_run(run_inline(config, 10, batching=batching, tell=silent)))
        models.append(load_file(tmp_path / name / "model.safetensors"))
    batched, serial = runs
    assert (batched.config["batched-training"], serial.config["batched-training"]) == (True, False)
    for line, alone in zip(batched.rounds, serial.rounds, strict=True):
        assert line["scores"] == pytest.approx(alone["scores"], rel=1e-3)
    for key in ("selected", "replied", "failed", "bytes-up", "bytes-down"):
        assert [line[key] for line in batched.rounds] == [line[key] for line in serial.rounds]
    for name, array in models[1].items():
        np.testing.assert_allclose(models[0][name], array, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("variant", "asked"),
    [("pow-d", "softmax_cohort_losses"), ("cpow-d", "softmax_cohort_first_losses")],
)
def test_the_losses_of_all_and_a_cohort_that_keeps_the_same_model_are_batched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str, asked: str
) -> None:
    from client import training

    seen: list[tuple[str, int]] = []
    for name in ("train_softmax_cohort", asked):

        def spy(cohort: Any, *rest: Any, name: str, real: Any) -> Any:
            seen.append((name, len(cohort)))
            return real(cohort, *rest)

        monkeypatch.setattr(training, name, partial(spy, name=name, real=getattr(training, name)))
    config = dataclasses.replace(
        QUICK, out=str(tmp_path / "run"), strategy="power-of-choice", variant=variant
    )
    run_inline(config, 10, tell=silent)
    each = [(asked, 10), ("train_softmax_cohort", QUICK.clients_per_round)]
    assert seen == each * QUICK.num_server_rounds


def test_a_convolution_is_not_batched(tmp_path: Path) -> None:
    config = RunConfig(num_server_rounds=1, local_steps=1, model="cnn", out=str(tmp_path / "r"))
    assert load_run(run_inline(config, 4, tell=silent)).config["batched-training"] is False


@pytest.mark.parametrize("engine", [run_inline, run_ray])
@pytest.mark.parametrize(
    ("clients", "message"),
    [(0, "^clients = 0: must be at least 1"), (2, "^clients-per-round = 3: must be at most")],
)
def test_clients_that_do_not_fit_are_refused(engine, clients: int, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=message):
        engine(QUICK, clients, tell=silent)


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = with_absolute_paths(RunConfig(out="here", data_dir="data"))
    assert (config.out, config.data_dir) == (str(tmp_path / "here"), str(tmp_path / "data"))
    fresh = with_absolute_paths(RunConfig(strategy="uniform"))
    assert Path(fresh.out).parent == tmp_path / "runs"
    assert fresh.out.endswith("-uniform")
    assert fresh.data_dir == ""
