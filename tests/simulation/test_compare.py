import dataclasses
from pathlib import Path

import pytest

from server.config import ConfigError
from server.errors import RunAborted
from server.results import load_run
from server.run_folder import RunFolderError
from simulation.compare import Job, is_finished, make_folder, plan, run_jobs
from simulation.engines import run_inline


def jobs(out: Path, *, strategies: tuple[str, ...] = ("uniform", "round-robin")) -> list[Job]:
    values = {"num-server-rounds": 2, "local-steps": 1, "seed": 3}
    return plan(values, strategies=strategies, seeds=2, num_clients=10, out=out)


def test_plan_is_every_strategy_with_every_seed(tmp_path: Path) -> None:
    planned = jobs(tmp_path)
    assert [(job.config.strategy, job.config.seed) for job in planned] == [
        ("uniform", 3),
        ("uniform", 4),
        ("round-robin", 3),
        ("round-robin", 4),
    ]
    assert planned[1].folder == tmp_path / "uniform" / "seed-4"
    assert len({job.folder for job in planned}) == 4
    assert all(job.batching for job in planned)


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ({}, {"seeds": 0}, "^seeds = 0: must be at least 1"),
        ({}, {"strategies": []}, "must be names, none twice"),
        ({}, {"strategies": ["uniform", "uniform"]}, "none twice"),
        ({}, {"strategies": ["unifrom"]}, "^strategy = 'unifrom': must be one of"),
        ({"out": "x"}, {}, "^out: is set by the comparison"),
        ({"theta": 2}, {}, "^theta = 2.0: must be"),
        ({"clients-per-round": 11}, {}, "^clients-per-round = 11: must be at most"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    tmp_path: Path, values: dict[str, int], options: dict[str, object], message: str
) -> None:
    settings = {"strategies": ["uniform"], "seeds": 1, "num_clients": 10, "out": tmp_path}
    with pytest.raises(ConfigError, match=message):
        plan(values, **(settings | options))  # type: ignore[arg-type]


def test_a_finished_run_is_known_and_another_is_refused(tmp_path: Path) -> None:
    job = jobs(tmp_path)[0]
    assert not is_finished(job)
    run_inline(job.config, job.num_clients, tell=lambda line: None)
    assert is_finished(job)
    other = dataclasses.replace(job, config=dataclasses.replace(job.config, local_steps=9))
    with pytest.raises(ConfigError, match="holds a run with local-steps = 1, not 9"):
        is_finished(other)
    with pytest.raises(ConfigError, match="holds a run with clients = 10, not 11"):
        is_finished(dataclasses.replace(job, num_clients=11))
    with pytest.raises(ConfigError, match="holds a run with batched-training = True, not False"):
        is_finished(dataclasses.replace(job, batching=False))
    (job.folder / "rounds.jsonl").unlink()
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        is_finished(job)


@pytest.mark.slow
def test_tasks_give_what_the_same_run_gives_here(tmp_path: Path) -> None:
    planned = jobs(tmp_path / "tasks")
    # One that fails must not stop the others.
    broken = dataclasses.replace(planned[0].config, dataset="image-folder")
    ended: dict[Path, str | None] = {}
    run_jobs(
        [dataclasses.replace(planned[0], config=broken), *planned[1:]],
        on_done=lambda job, reason: ended.update({job.folder: reason}),
    )
    assert set(ended) == {job.folder for job in planned}
    assert "data-dir" in str(ended[planned[0].folder])
    assert not planned[0].folder.exists()
    for job in planned[1:]:
        assert ended[job.folder] is None
        assert is_finished(job)
        here = dataclasses.replace(job.config, out=str(tmp_path / "here" / job.folder.name))
        if job.config.strategy == "uniform":
            folder = run_inline(here, job.num_clients, tell=lambda line: None)
            model = (folder / "model.safetensors").read_bytes()
            assert model == (job.folder / "model.safetensors").read_bytes()
            assert load_run(job.folder).config["out"] == str(job.folder)


@pytest.mark.slow
def test_results_that_cannot_be_written_are_told_and_leave_nothing_half(tmp_path: Path) -> None:
    (job,) = jobs(tmp_path, strategies=("uniform",))[:1]
    job.folder.parent.write_text("a file where a folder should be")
    with pytest.raises(RunFolderError, match="finished runs are safe"):
        run_jobs([job], on_done=lambda job, reason: None)
    assert [path.name for path in tmp_path.rglob("*")] == ["uniform"]


@pytest.mark.parametrize("below", [False, True])
def test_a_folder_that_takes_no_files_is_told_before_anything_runs(
    tmp_path: Path, below: bool
) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    out = file / "out" if below else file
    with pytest.raises(RunFolderError, match=r"^--out = .*file.*: must be a folder") as caught:
        make_folder(out)
    assert "\n" not in str(caught.value)
    assert file.read_text() == "kept"
    make_folder(tmp_path / "new" / "folder")
    assert [path.name for path in tmp_path.rglob("*") if path.is_dir()] == ["new", "folder"]


def test_ray_that_does_not_start_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**options: object) -> None:
        raise Exception("The node timed out\nduring startup.")

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(RunAborted, match=r"^Ray at this machine: during startup\.$"):
        run_jobs(jobs(tmp_path), on_done=lambda job, reason: None)
