import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, RecordDict

from client import kept as module
from client.kept import forget, keep, kept
from strategies.arrays import pack, view

SMALL = {"b": np.arange(3, dtype=np.float32), "a": np.array(7)}
LARGE = {
    "weight": np.asfortranarray(np.arange(1_200_000, dtype=np.float32).reshape(1000, -1)),
    "count": np.array(3),
    "a bias": np.ones(4),
}


def context() -> Context:
    return Context(1, 1, {}, RecordDict(), {})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let this process look like one that Flower starts for a message."""
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/flwr-clientapp", "--token", "t"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def same(found: ArrayRecord, expected: dict[str, np.ndarray]) -> bool:  # type: ignore[type-arg]
    assert list(found) == list(expected)
    assert all(found[name].dtype == str(value.dtype) for name, value in expected.items())
    return all(np.array_equal(view(found[name]), value) for name, value in expected.items())


def in_state(ctx: Context) -> int:
    return sum(
        len(array.data)
        for record in ctx.state.values()
        if isinstance(record, ArrayRecord)
        for array in record.values()
    )


def test_a_large_model_goes_to_a_private_file_where_each_message_is_a_process(folder: Path) -> None:
    ctx = context()
    for server_round in (1, 2):  # the second takes the place of the first
        keep(ctx, pack(LARGE), {"train-loss": 0.5}, server_round)
        (private,) = folder.iterdir()
        assert private.stat().st_mode & 0o777 == 0o700
        assert [file.name for file in private.iterdir()] == ["model.safetensors"]
        assert in_state(ctx) == 0
        found = kept(ctx, server_round)
        assert found is not None
        assert same(found[0], LARGE)
        assert dict(found[1]) == {"round": server_round, "train-loss": 0.5}
    assert kept(ctx, 1) is None
    forget(ctx)
    assert list(folder.iterdir()) == []
    assert len(ctx.state) == 0


def test_a_small_model_stays_in_the_context(folder: Path) -> None:
    ctx = context()
    keep(ctx, pack(SMALL), {}, 1)
    assert list(folder.iterdir()) == []
    assert in_state(ctx) > 0
    keep(ctx, pack(LARGE), {}, 1)
    keep(ctx, pack(SMALL), {}, 1)  # in place of the large one
    assert list(folder.iterdir()) == []
    found = kept(ctx, 1)
    assert found is not None
    assert same(found[0], SMALL)
    forget(ctx)
    assert kept(ctx, 1) is None


def test_a_simulation_keeps_large_models_in_memory() -> None:
    ctx, arrays = context(), pack(LARGE)
    keep(ctx, arrays, {}, 1)
    found = kept(ctx, 1)
    assert found is not None
    assert found[0] is arrays


@pytest.mark.parametrize("harm", ["gone", "cut", "empty"])
def test_a_file_that_cannot_be_read_counts_as_lost(folder: Path, harm: str) -> None:
    ctx = context()
    keep(ctx, pack(LARGE), {}, 1)
    (path,) = folder.glob("*/model.safetensors")
    if harm == "gone":
        path.unlink()
    else:
        os.truncate(path, 1_000_000 if harm == "cut" else 0)
    assert kept(ctx, 1) is None
    forget(ctx)
    assert list(folder.iterdir()) == []


def test_a_full_disk_keeps_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    ctx = context()
    keep(ctx, pack(LARGE), {}, 1)
    monkeypatch.setattr(module, "save_file", full)
    keep(ctx, pack(LARGE), {}, 2)
    assert kept(ctx, 1) is None
    assert kept(ctx, 2) is None
    assert list(folder.iterdir()) == []


def test_what_a_lost_context_kept_is_removed_a_day_later(folder: Path) -> None:
    for _ in range(2):
        keep(context(), pack(LARGE), {}, 1)
    old, new = sorted(folder.iterdir())
    yesterday = time.time() - 25 * 3600
    os.utime(old, (yesterday, yesterday))
    elsewhere = folder / "data"
    elsewhere.mkdir()
    (elsewhere / "kept.npz").touch()
    link = folder / "muster-kept-link"
    link.symlink_to(elsewhere)
    os.utime(link, (yesterday, yesterday), follow_symlinks=False)
    keep(context(), pack(LARGE), {}, 1)
    assert not old.exists()
    assert new.exists()
    assert (elsewhere / "kept.npz").exists()
