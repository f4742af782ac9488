from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from safetensors.numpy import load_file

from server.checkpoint import load_latest, save_checkpoint, save_model

STATE: dict[str, Any] = {
    "selector": {
        "round": 3,
        "names": ["a", "10"],
        "sketches": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "empty": {},
        "nothing": None,
        "flag": True,
        "mean": np.float64(0.25),
        "nan": float("nan"),
    },
    "aggregator": {"m_t": {"w": np.array(2.0)}, "momentum": [np.zeros(0), np.ones((1, 2))]},
}


def model(value: float = 1.0) -> ArrayRecord:
    return ArrayRecord(
        {
            "z": Array(np.full((2, 3), value, np.float32)),
            "a": Array(np.array(7, np.int64)),
            "t": Array(np.asfortranarray(np.arange(6.0).reshape(2, 3))),
        }
    )


def same(a: Any, b: Any) -> None:
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
        assert a.shape == b.shape
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b or (a != a and b != b)


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "checkpoint", 12, model(), STATE)
    found = load_latest(tmp_path / "checkpoint")
    assert found is not None
    assert found.round == 12
    same(STATE, found.state)
    assert list(found.model) == ["z", "a", "t"]
    for name, array in model().items():
        assert found.model[name].dtype == array.dtype
        np.testing.assert_array_equal(found.model[name].numpy(), array.numpy())
        assert found.model[name].numpy().shape == array.numpy().shape


def test_the_last_two_are_kept_in_order_of_rounds(tmp_path: Path) -> None:
    for turn in (8, 9, 10, 11):
        save_checkpoint(tmp_path, turn, model(turn), {})
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "round-00000010.safetensors",
        "round-00000011.safetensors",
    ]
    found = load_latest(tmp_path)
    assert found is not None
    assert found.round == 11


@pytest.mark.parametrize("left", [0, 4, 100, -1])
def test_a_checkpoint_cut_short_is_passed_over(tmp_path: Path, left: int) -> None:
    for turn in (1, 2):
        save_checkpoint(tmp_path, turn, model(turn), STATE)
    newest = tmp_path / "round-00000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:left])
    found = load_latest(tmp_path)
    assert found is not None
    assert found.round == 1
    assert found.model["z"].numpy()[0, 0] == 1.0


def test_none_is_none(tmp_path: Path) -> None:
    assert load_latest(tmp_path / "absent") is None
    (tmp_path / "round-00000001.safetensors").write_bytes(b"")
    assert load_latest(tmp_path) is None


def test_a_write_that_fails_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, 1, model(1), {})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, 2, model(2), {})
    monkeypatch.undo()
    found = load_latest(tmp_path)
    assert found is not None
    assert found.round == 1


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a strategy's state holds a set"):
        save_checkpoint(tmp_path, 1, model(), {"x": {1, 2}})


def test_a_model_is_plain_safetensors(tmp_path: Path) -> None:
    save_model(tmp_path / "model.safetensors", model())
    found = load_file(tmp_path / "model.safetensors")
    assert set(found) == {"z", "a", "t"}
    for name, array in model().items():
        np.testing.assert_array_equal(found[name], array.numpy())
        assert found[name].shape == array.numpy().shape
