from __future__ import annotations

import errno
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from server.config import ConfigError, RunConfig
from server.run_folder import RunFolder, RunFolderError
from strategies import RoundRecord


def model(value: float = 0.0) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.full(3, value, np.float32))})


def record(turn: int) -> RoundRecord:
    return RoundRecord(turn, eligible=["0", "1"], selected=["1"], metrics={"accuracy": turn / 10})


def write(config: RunConfig, rounds: range, **extra: Any) -> Path:
    with RunFolder(config, extra) as folder:
        for turn in rounds:
            folder.write_round(record(turn), model(turn), {"turn": turn})
        return folder.path


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def in_folder(folder: Path, **values: Any) -> RunConfig:
    return RunConfig(out=str(folder), **values)


def test_the_files_are_those_of_the_design(tmp_path: Path) -> None:
    config = in_folder(tmp_path / "a" / "b", seed=5)
    with RunFolder(config, {"engine": "inline"}) as folder:
        folder.write_round(record(1), model(1), {})
        assert lines(folder.path) == [json.loads(json.dumps(record(1).to_json()))]
        folder.write_model(model(2))
    assert folder.path.is_absolute()
    assert {file.name for file in folder.path.iterdir()} == {
        "config.toml",
        "rounds.jsonl",
        "checkpoint",
        "model.safetensors",
    }
    written = tomllib.loads((folder.path / "config.toml").read_text())
    assert written == {**config.to_run_config(), "out": str(folder.path), "engine": "inline"}


def test_a_round_has_the_keys_of_the_design(tmp_path: Path) -> None:
    (line,) = lines(write(in_folder(tmp_path / "run"), range(1, 2)))
    assert set(line) == {
        "round",
        "eligible",
        "sketched",
        "selected",
        "replied",
        "failed",
        "scores",
        "bytes-down",
        "bytes-up",
        "seconds",
        "metrics",
    }


def test_without_a_name_it_is_a_new_folder_under_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(RunConfig(strategy="uniform"), range(1, 2))
    assert path.parent == tmp_path / "runs"
    assert path.name.endswith("-uniform")


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    write(in_folder(tmp_path), range(1, 4))
    before = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    with pytest.raises(ConfigError, match=r"^out = .*: holds a run already; name another folder"):
        RunFolder(in_folder(tmp_path, seed=3))
    assert {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()} == before


@pytest.mark.parametrize(("every", "left"), [(1, 5), (2, 4), (3, 3)])
def test_resuming_goes_on_after_the_last_checkpoint(tmp_path: Path, every: int, left: int) -> None:
    path = write(in_folder(tmp_path, checkpoint_every=every), range(1, 6))
    with RunFolder(in_folder(tmp_path, checkpoint_every=every, resume="auto")) as folder:
        assert folder.checkpoint is not None
        assert folder.checkpoint.round == left
        assert folder.checkpoint.state == {"turn": left}
        assert [line["round"] for line in lines(path)] == list(range(1, left + 1))
        folder.write_round(record(left + 1), model(), {})
    assert [line["round"] for line in lines(path)] == list(range(1, left + 2))


def test_without_a_checkpoint_it_starts_again(tmp_path: Path) -> None:
    write(in_folder(tmp_path, checkpoint_every=0), range(1, 4))
    assert not (tmp_path / "checkpoint").exists()
    with RunFolder(in_folder(tmp_path, checkpoint_every=0, resume="auto")) as folder:
        assert folder.checkpoint is None
    assert lines(tmp_path) == []


def test_resuming_an_empty_folder_is_a_new_run(tmp_path: Path) -> None:
    with RunFolder(in_folder(tmp_path / "new", resume="auto")) as folder:
        assert folder.checkpoint is None


@pytest.mark.parametrize("resume", ["never", "auto"])
def test_a_run_that_never_had_a_round_does_not_take_the_folder(tmp_path: Path, resume: str) -> None:
    write(in_folder(tmp_path, clients_per_round=99), range(0))
    path = write(in_folder(tmp_path, clients_per_round=3, resume=resume), range(1, 3))
    assert [line["round"] for line in lines(path)] == [1, 2]


def test_a_truncated_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    write(in_folder(tmp_path), range(1, 5))
    newest = tmp_path / "checkpoint" / "round-00000004.safetensors"
    newest.write_bytes(newest.read_bytes()[:-3])
    with RunFolder(in_folder(tmp_path, resume="auto")) as folder:
        assert folder.checkpoint is not None
        assert folder.checkpoint.round == 3
    assert [line["round"] for line in lines(tmp_path)] == [1, 2, 3]


def test_a_line_cut_short_by_a_kill_is_dropped(tmp_path: Path) -> None:
    write(in_folder(tmp_path), range(1, 4))
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "sele')
    with RunFolder(in_folder(tmp_path, resume="auto")) as folder:
        folder.write_round(record(4), model(), {})
    assert [line["round"] for line in lines(tmp_path)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed = 1: the run in {} has 0; a run goes on with"),
        ({"strategy": "uniform"}, "strategy = 'uniform': the run in {} has 'sckm-select'"),
        ({"learning_rate": 0.2}, "learning-rate = 0.2: the run in {} has 0.1"),
    ],
)
def test_another_configuration_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write(in_folder(tmp_path), range(1, 3))
    with pytest.raises(ConfigError) as caught:
        RunFolder(in_folder(tmp_path, resume="auto", **change))
    assert str(caught.value).startswith(message.format(tmp_path))
    assert "\n" not in str(caught.value)
    assert len(lines(tmp_path)) == 2


def test_another_number_of_clients_is_refused(tmp_path: Path) -> None:
    write(in_folder(tmp_path), range(1, 3), clients=10)
    with pytest.raises(ConfigError, match=r"^clients = 11: the run in .* has 10"):
        RunFolder(in_folder(tmp_path, resume="auto"), {"clients": 11})


def test_rounds_deadlines_and_checkpoints_may_change(tmp_path: Path) -> None:
    write(in_folder(tmp_path), range(1, 3))
    later = in_folder(
        tmp_path, resume="auto", num_server_rounds=99, deadline=1.0, grace=1.0, checkpoint_every=5
    )
    with RunFolder(later) as folder:
        assert folder.checkpoint is not None
    assert tomllib.loads((tmp_path / "config.toml").read_text())["num-server-rounds"] == 99


@pytest.mark.parametrize(
    ("name", "text"), [("config.toml", "seed = "), ("rounds.jsonl", "x\n{}\n"), ("config.toml", "")]
)
def test_a_damaged_run_is_one_line(tmp_path: Path, name: str, text: str) -> None:
    write(in_folder(tmp_path), range(1, 3))
    (tmp_path / name).write_text(text)
    with pytest.raises((RunFolderError, ConfigError)) as caught:
        RunFolder(in_folder(tmp_path, resume="auto"))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def no_space(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_tells_what_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder(in_folder(tmp_path)) as folder:
        for turn in (1, 2):
            folder.write_round(record(turn), model(turn), {})
        monkeypatch.setattr("os.fsync", no_space)
        want = f"cannot write {tmp_path}: No space left on device; rounds 1 to 2 are safe"
        with pytest.raises(RunFolderError) as caught:
            folder.write_round(record(3), model(3), {})
        assert str(caught.value) == want
        with pytest.raises(RunFolderError) as caught:
            folder.write_model(model(3))
        assert str(caught.value) == want
    monkeypatch.undo()
    with RunFolder(in_folder(tmp_path, resume="auto")) as folder:
        assert folder.checkpoint is not None
        assert folder.checkpoint.round == 2


def test_a_disk_full_from_the_start_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "write_text", no_space)
    with pytest.raises(RunFolderError, match=r"No space left on device; no round was lost$"):
        RunFolder(in_folder(tmp_path / "new"))


def test_a_disk_full_while_resuming_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are opened for writing before the disk turns out to be full."""
    write(in_folder(tmp_path), range(1, 4))
    before = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}

    def emptied(self: Path, *args: Any, **kwargs: Any) -> None:
        self.open("w").close()
        no_space()

    monkeypatch.setattr(Path, "write_text", emptied)
    with pytest.raises(RunFolderError, match="No space left on device"):
        RunFolder(in_folder(tmp_path, resume="auto"))
    assert {f: f.read_bytes() for f in before} == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"^cannot write .*file/run: Not a directory"):
        RunFolder(in_folder(tmp_path / "file" / "run"))
