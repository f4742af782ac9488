import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from server.config import ConfigError
from server.errors import RunAborted
from server.results import load_run
from simulation.engines import run_inline
from simulation.reproduce import runs
from simulation.reproduce.item import Options, Setting
from simulation.reproduce.runs import load_result, run_settings

SHARED = {"num-server-rounds": 4, "local-steps": 1, "evaluate-every": 2}
SETTINGS = [
    Setting("clustered", {**SHARED, "strategy": "sckm-cluster"}, 10),
    Setting("uniform", {**SHARED, "strategy": "uniform"}, 10),
]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run jobs here instead of in Ray, which test_compare.py covers; return what was started."""
    names: list[str] = []

    def run_jobs(jobs, *, cpus, on_done):  # type: ignore[no-untyped-def]
        for job in jobs:
            names.append(f"{job.folder.parent.name}/{job.folder.name}")
            if job.config.learning_rate == 1e30:
                on_done(job, "no luck")
            else:
                run_inline(job.config, job.num_clients, tell=lambda line: None)
                on_done(job, None)

    monkeypatch.setattr(runs, "run_jobs", run_jobs)
    return names


def test_runs_are_done_once_seed_by_seed(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    told: list[str] = []
    options = Options(out=tmp_path, full=False, seeds=1, tell=told.append)
    run_settings(SETTINGS[:1], options, folder="some")
    options = dataclasses.replace(options, seeds=2, cpus=2)
    told.clear()
    results = run_settings(SETTINGS, options, folder="some", minutes=2.2)
    assert started == ["clustered/seed-0", "uniform/seed-0", "clustered/seed-1", "uniform/seed-1"]
    assert told == [
        "3 of 4 runs to do, roughly 5 min with 2 at a time",
        "2/4 uniform, seed 0: finished",
        "3/4 clustered, seed 1: finished",
        "4/4 uniform, seed 1: finished",
    ]
    assert {label: [r.seed for r in found] for label, found in results.items()} == {
        "clustered": [0, 1],
        "uniform": [0, 1],
    }
    told.clear()
    run_settings(SETTINGS, options, folder="some")
    assert len(started) == 4
    assert told == []


def test_a_result_is_what_the_whole_run_says(tmp_path: Path, started: list[str]) -> None:
    options = Options(out=tmp_path, full=False, seeds=1, tell=lambda line: None)
    (result,) = run_settings(SETTINGS[:1], options, folder="")["clustered"]
    run = load_run(tmp_path / "clustered" / "seed-0")
    evaluations, participation = run.evaluations(), run.participation()
    assert result.clients == participation.names == tuple(map(str, range(10)))
    np.testing.assert_array_equal(result.picks, participation.picked.sum(axis=1))
    np.testing.assert_array_equal(result.rounds, [2, 4])
    np.testing.assert_array_equal(result.accuracy, evaluations.accuracy)
    np.testing.assert_array_equal(result.worst, evaluations.worst)
    np.testing.assert_array_equal(result.cluster_rounds, [1, 2, 3, 4])
    assert (result.clusters >= 1).all()
    assert result.by_client.min() == result.worst[-1]
    assert result.central[-1] == run.rounds[-1]["metrics"]["central-accuracy"]


def test_failed_runs_are_told_and_the_others_kept(tmp_path: Path, started: list[str]) -> None:
    told: list[str] = []
    options = Options(out=tmp_path, full=False, seeds=2, tell=told.append)
    broken = Setting("broken", {**SETTINGS[1].values, "learning-rate": 1e30}, 10)
    with pytest.raises(RunAborted, match=r"^2 of 4 runs failed; the same command"):
        run_settings([broken, SETTINGS[1]], options, folder="")
    assert "1/4 broken, seed 0: failed: no luck" in told
    assert (tmp_path / "uniform" / "seed-1" / "rounds.jsonl").exists()


@pytest.mark.parametrize(
    ("values", "clients", "options", "message"),
    [
        ({}, 2, {}, "^clients-per-round = 3: must be at most"),
        ({"dataset": "image-folder"}, 10, {}, "data-dir"),
        ({"theta": 2}, 10, {}, "^theta = 2.0"),
        ({}, 10, {"seeds": 0}, "^seeds = 0: must be at least 1"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    tmp_path: Path,
    started: list[str],
    values: dict[str, object],
    clients: int,
    options: dict[str, object],
    message: str,
) -> None:
    setting = Setting("wrong", values, clients)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        run_settings([setting], Options(out=tmp_path, full=False, **options), folder="")  # type: ignore[arg-type]
    assert started == []


def test_a_label_may_not_be_there_twice(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="twice"):
        run_settings([SETTINGS[0]] * 2, Options(out=tmp_path, full=False), folder="")


@pytest.mark.parametrize("text", [None, "{}\n{}\n", '{"round": 1}\n'])
def test_what_is_no_run_is_one_line(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "config.toml").write_text("seed = 0\nnum-server-rounds = 1")
    if text is not None:
        (tmp_path / "rounds.jsonl").write_text(text)
    with pytest.raises(RunAborted) as caught:
        load_result(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(("cut", "last"), [(10, 3), (None, 0)])
def test_a_run_that_lost_rounds_is_refused(
    tmp_path: Path, started: list[str], cut: int | None, last: int
) -> None:
    options = Options(out=tmp_path, full=False, seeds=1, tell=lambda line: None)
    run_settings(SETTINGS[:1], options, folder="")
    file = tmp_path / "clustered" / "seed-0" / "rounds.jsonl"
    file.write_bytes(file.read_bytes()[:-cut] if cut else b"")
    with pytest.raises(RunAborted, match=rf"rounds\.jsonl ends with round {last} of 4; remove"):
        run_settings(SETTINGS[:1], options, folder="")


def test_more_runs_at_a_time_than_cpus_take_no_less(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    told: list[str] = []
    options = Options(out=tmp_path, full=False, seeds=2, cpus=100, tell=told.append)
    run_settings(SETTINGS, options, folder="", minutes=3)
    assert told[0] == "4 of 4 runs to do, roughly 6 min with 100 at a time"


def test_a_client_that_was_not_evaluated_has_no_accuracy(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("seed = 0\nnum-server-rounds = 1")
    metrics = {"accuracy": 0.5, "accuracy-by-client": {"a": 0.5}}
    line = {"round": 1, "eligible": ["b"], "selected": ["a"], "metrics": metrics}
    (tmp_path / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    result = load_result(tmp_path)
    assert result.clients == ("a", "b")
    np.testing.assert_array_equal(result.by_client, [0.5, np.nan])
    np.testing.assert_array_equal(result.worst, [np.nan])
    assert result.cluster_rounds.shape == (0,)
