"""What a client keeps from phase 1 of a round for phase 2: a model, and numbers to send with it.

It is kept in the Context, which Flower carries from message to message. In a deployment each
message is a process of its own, `flwr-clientapp`, which hands its Context over while it ends and is
killed if that takes 5 s (Flower 1.42); the client then counts as crashed. A large model is not left
to that: it goes to a file of this machine, and only the file's name to the Context. Where the file
is not found, in another container say, the client asks for the model again.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.app.typing import MetricRecordValues
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from strategies.arrays import array_bytes, pack, view
from strategies.records import find

__all__ = ["forget", "keep", "kept"]

_ARRAYS, _METRICS, _FILE = "kept", "kept-metrics", "kept-file"
_LARGE = 2**22  # bytes
_PREFIX = "muster-kept-"
_FORGOTTEN = 24 * 3600.0  # seconds; no round takes as long


def keep(
    context: Context,
    arrays: ArrayRecord,
    metrics: Mapping[str, MetricRecordValues],
    server_round: int,
) -> None:
    """Keep a model for the second phase of this round, in place of what was kept before.

    On a full disk a large one is not kept, and asked for again in phase 2.
    """
    forget(context)
    if Path(sys.argv[0]).name == "flwr-clientapp" and _bytes(arrays) > _LARGE:
        _remove_forgotten()
        try:
            context.state[_FILE] = _write(arrays)
        except OSError:
            return
    else:
        context.state[_ARRAYS] = arrays
    context.state[_METRICS] = MetricRecord({"round": server_round, **metrics})


def kept(context: Context, server_round: int) -> tuple[ArrayRecord, MetricRecord] | None:
    """Return what was kept in this round, or None if it is lost."""
    metrics = find(context.state, _METRICS, MetricRecord)
    if metrics is None or metrics.get("round") != server_round:
        return None
    file = find(context.state, _FILE, ConfigRecord)
    arrays = find(context.state, _ARRAYS, ArrayRecord) if file is None else _read(file)
    return None if arrays is None else (arrays, metrics)


def forget(context: Context) -> None:
    """Let go of what is kept, so that it is not carried on with every message."""
    file = find(context.state, _FILE, ConfigRecord)
    if file is not None:
        shutil.rmtree(cast("str", file["folder"]), ignore_errors=True)
    for name in (_ARRAYS, _METRICS, _FILE):
        context.state.pop(name, None)


def _bytes(arrays: ArrayRecord) -> int:
    return sum(array_bytes(array) for array in arrays.values())


def _write(arrays: ArrayRecord) -> ConfigRecord:
    """Write the arrays to a folder that only this user can enter.

    Raises
    ------
    OSError
        If they cannot be written.
    """
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    try:
        values = {name: np.asarray(view(array), order="C") for name, array in arrays.items()}
        save_file(values, _file(folder))
    except (OSError, SafetensorError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise OSError(f"cannot write to {folder}: {error}") from error
    return ConfigRecord({"folder": folder, "names": list(arrays)})  # the file has its own order


def _remove_forgotten() -> None:
    """Remove what a client kept whose Context is gone, as after a run's last round or a crash."""
    oldest = time.time() - _FORGOTTEN
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            if status.st_uid == os.getuid() and status.st_mtime < oldest:
                shutil.rmtree(folder)


def _file(folder: str) -> Path:
    return Path(folder) / "model.safetensors"


def _read(file: ConfigRecord) -> ArrayRecord | None:
    try:
        arrays = load_file(_file(cast("str", file["folder"])))
    except (OSError, SafetensorError):
        return None
    return pack({name: arrays[name] for name in cast("list[str]", file["names"])}, copy=False)
