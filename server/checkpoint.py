"""Checkpoints: the model and everything the next round depends on, in one safetensors file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.supercore import log
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from strategies.arrays import pack, view

__all__ = ["Checkpoint", "load_latest", "save_checkpoint", "save_model"]

_KEPT = 2
_NAME = "round-{:08d}.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stood after `round`."""

    round: int
    model: ArrayRecord
    state: dict[str, Any]


def save_model(file: Path, model: ArrayRecord) -> None:
    """Write a model's arrays as safetensors, atomically."""
    _write(file, save({name: _contiguous(view(array)) for name, array in model.items()}))


def save_checkpoint(folder: Path, server_round: int, model: ArrayRecord, state: Any) -> None:
    """Write a checkpoint and delete all but the last two.

    The file appears whole or not at all: it is written beside its place, flushed to the disk and
    renamed.

    Parameters
    ----------
    folder : Path
        Made if need be.
    server_round : int
        The round that has ended.
    model : ArrayRecord
        The model after it.
    state : nested dicts and lists
        With text keys; leaves are NumPy arrays, numbers, text, booleans and None.
    """
    folder.mkdir(exist_ok=True)
    arrays = {f"model/{n}": _contiguous(view(array)) for n, array in model.items()}
    outline = _split(state, arrays)
    meta = {"round": str(server_round), "state": json.dumps(outline), "order": json.dumps([*model])}
    _write(folder / _NAME.format(server_round), save(arrays, metadata=meta))
    for old in _files(folder)[_KEPT:]:
        old.unlink(missing_ok=True)


def load_latest(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint that can be read, or None.

    One that is cut short or damaged is passed over with a warning; the one before serves.
    """
    for file in _files(folder):
        try:
            return _load(file)
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            log(WARNING, "checkpoint %s cannot be read (%s); trying the one before", file, error)
    return None


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.safetensors"), reverse=True)


def _load(file: Path) -> Checkpoint:
    with safe_open(file, framework="numpy") as opened:
        meta = opened.metadata()
        arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    names = json.loads(meta["order"])
    return Checkpoint(
        round=int(meta["round"]),
        model=pack({name: arrays[f"model/{name}"] for name in names}),
        state=_join(json.loads(meta["state"]), arrays),
    )


def _write(file: Path, data: bytes) -> None:
    partial = file.with_suffix(".partial")
    with partial.open("wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    os.replace(partial, file)


def _contiguous(array: NDArray[Any]) -> NDArray[Any]:
    # `ascontiguousarray` makes a 0-d array 1-d.
    return np.ascontiguousarray(array).reshape(array.shape)


def _split(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return `value` with its arrays taken out into `arrays` and references in their place."""
    if isinstance(value, np.ndarray):
        name = f"state/{len(arrays)}"
        arrays[name] = _contiguous(value)
        return {"array": name}
    if isinstance(value, np.generic):
        return {"value": value.item()}
    if isinstance(value, Mapping):
        return {"dict": {key: _split(item, arrays) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return {"list": [_split(item, arrays) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"a strategy's state holds a {type(value).__name__}, which cannot be saved")


def _join(outline: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Any:
    kind, value = next(iter(outline.items()))
    if kind == "array":
        return arrays[value]
    if kind == "dict":
        return {key: _join(item, arrays) for key, item in value.items()}
    if kind == "list":
        return [_join(item, arrays) for item in value]
    return value
