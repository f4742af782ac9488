"""What the two phases' messages carry, and the checks on what comes back.

================  ==========================================  =====================================
message           down                                        up
================  ==========================================  =====================================
``query.name``    `config`                                    `client`, `metrics`
``train.sketch``  `arrays` (the model), `config`              `client`, `metrics`, `sketch`
``train``         `config`; `arrays` unless the client kept   `client`, `metrics`, `arrays` (its
                  them from phase 1                           model after training)
``evaluate``      `arrays`, `config`                          `client`, `metrics`
================  ==========================================  =====================================

Replies name the client (`client["name"]`) and echo the round (`metrics["round"]`). A `train`
handler that knows nothing of this project may leave both out, where the name is known from phase 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from strategies.arrays import array_bytes, dtype_name, view
from strategies.records import find

__all__ = [
    "EVALUATE",
    "NAME",
    "SKETCH",
    "TRAIN",
    "Arrays",
    "ReplyError",
    "SketchReply",
    "TrainReply",
    "client_name",
    "count_bytes",
    "float_shapes",
    "number",
    "read_sketch",
    "read_trained",
    "wants_model",
]

NAME = "query.name"
SKETCH = "train.sketch"
TRAIN = "train"
EVALUATE = "evaluate"

Arrays = Mapping[str, NDArray[Any]]


class ReplyError(ValueError):
    """A reply that cannot be used; the text is the reason recorded in `failed`."""


@dataclass(frozen=True)
class SketchReply:
    """A checked reply of phase 1; what was not asked for is NaN or empty."""

    sketch: NDArray[np.float32]
    loss: float
    norm: float
    examples: int


@dataclass(frozen=True)
class TrainReply:
    """A checked reply of phase 2; a loss that was not asked for, or not sent, is NaN."""

    arrays: ArrayRecord
    examples: int
    train_loss: float
    loss: float
    loss_rms: float


def count_bytes(content: RecordDict) -> int:
    """Return a message's payload in bytes: arrays as serialised, numbers, texts and their keys."""
    return sum(_record_bytes(record) for record in content.values())


def _record_bytes(record: ArrayRecord | ConfigRecord | MetricRecord) -> int:
    if isinstance(record, ArrayRecord):
        return sum(len(key) + array_bytes(array) for key, array in record.items())
    if isinstance(record, ConfigRecord):  # Flower's own count fails on empty texts and lists
        return sum(len(key) + _size(value) for key, value in record.items())
    return record.count_bytes()


def float_shapes(arrays: ArrayRecord) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the floating-point arrays, the ones an update is made of."""
    return {n: tuple(a.shape) for n, a in arrays.items() if a.dtype.startswith(("float", "bfloat"))}


def client_name(reply: Message) -> str:
    """Return the name a client gives itself.

    Raises
    ------
    ReplyError
        If the reply has none.
    """
    record = find(reply.content, "client", ConfigRecord) or ConfigRecord()
    name = record.get("name")
    if not isinstance(name, str) or not name:
        raise ReplyError("the reply does not name its client")
    return name


def number(metrics: MetricRecord, key: str, *, least: float = 0.0) -> float:
    """Return a metric that must be a finite number of at least `least`.

    Raises
    ------
    ReplyError
        If it is missing, not a number, NaN, infinite or too small.
    """
    value = metrics.get(key)
    if not isinstance(value, int | float):
        raise ReplyError(f"the reply lacks the number {key!r}")
    if not np.isfinite(value) or value < least:
        raise ReplyError(f"{key} = {value}: must be a finite number of at least {least:g}")
    return float(value)


def wants_model(reply: Message) -> bool:
    """Whether a client answers that it no longer holds what it kept from phase 1."""
    return bool(
        (find(reply.content, "metrics", MetricRecord) or MetricRecord()).get("needs-model", 0)
    )


def read_sketch(
    reply: Message, server_round: int, *, needs: frozenset[str], entries: int
) -> SketchReply:
    """Check a reply of phase 1.

    Raises
    ------
    ReplyError
        If it belongs to another round, lacks what was asked for, or holds NaN or infinity.
    """
    metrics = _metrics(reply, server_round)
    sketch = np.empty(0, dtype=np.float32)
    if "sketch" in needs:
        array = (find(reply.content, "sketch", ArrayRecord) or ArrayRecord()).get("values")
        if array is None:
            raise ReplyError("the reply has no sketch")
        if array.dtype != "float32" or tuple(array.shape) != (entries,):
            raise ReplyError(
                f"sketch of {array.dtype} with shape {tuple(array.shape)}: "
                f"expected float32 with shape ({entries},)"
            )
        sketch = cast("NDArray[np.float32]", _values("sketch", array))
        if sketch.shape != (entries,):
            raise ReplyError(f"sketch with {sketch.size} entries: expected {entries}")
        _require_finite("sketch", sketch)
    wants_loss = "loss" in needs or "batch-loss" in needs
    return SketchReply(
        sketch=sketch,
        loss=number(metrics, "loss") if wants_loss else float("nan"),
        norm=number(metrics, "norm") if "norm" in needs else float("nan"),
        examples=int(number(metrics, "num-examples", least=1)),
    )


def read_trained(
    reply: Message, server_round: int, *, model: ArrayRecord, needs: frozenset[str]
) -> TrainReply:
    """Check a reply of phase 2 against the model that was sent.

    Raises
    ------
    ReplyError
        If it belongs to another round, its arrays differ from the model's in name, shape or dtype,
        or hold NaN or infinity.
    """
    metrics = _metrics(reply, server_round, echoed=False)
    arrays = find(reply.content, "arrays", ArrayRecord)
    if arrays is None:
        raise ReplyError("the reply has no model")
    if arrays.keys() != model.keys():
        odd = sorted(arrays.keys() ^ model.keys())
        raise ReplyError(f"the reply's arrays differ from the model's: {', '.join(odd[:5])}")
    for name, array in arrays.items():
        want = model[name]
        if tuple(array.shape) != tuple(want.shape) or array.dtype != want.dtype:
            raise ReplyError(
                f"array {name!r} is {array.dtype} {tuple(array.shape)}: "
                f"expected {want.dtype} {tuple(want.shape)}"
            )
        values = _values(f"array {name!r}", array)
        if values.shape != tuple(want.shape):
            raise ReplyError(f"array {name!r} has shape {values.shape}, not {tuple(want.shape)}")
        _require_finite(f"array {name!r}", values)
    return TrainReply(
        arrays=arrays,
        examples=int(number(metrics, "num-examples", least=1)),
        train_loss=number(metrics, "train-loss") if "train-loss" in metrics else float("nan"),
        loss=number(metrics, "loss") if "loss" in needs else float("nan"),
        loss_rms=number(metrics, "loss-rms") if "loss-rms" in needs else float("nan"),
    )


def _size(value: object) -> int:
    if isinstance(value, list):
        return sum(map(_size, value))
    if isinstance(value, str | bytes):
        return len(value)
    return 1 if isinstance(value, bool) else 8


def _metrics(reply: Message, server_round: int, *, echoed: bool = True) -> MetricRecord:
    metrics = find(reply.content, "metrics", MetricRecord)
    if metrics is None:
        raise ReplyError("the reply has no metrics")
    if (echoed or "round" in metrics) and metrics.get("round") != server_round:
        raise ReplyError(f"the reply is for round {metrics.get('round')}, not {server_round}")
    return metrics


def _values(what: str, array: Array) -> NDArray[Any]:
    """Return what an array of a reply holds, which must be what it says."""
    try:
        values = view(array)
    except ValueError as error:
        raise ReplyError(f"{what} cannot be read: {error}") from error
    if dtype_name(values.dtype) != array.dtype:
        raise ReplyError(f"{what} holds {values.dtype}, but says {array.dtype}")
    return values


def _require_finite(what: str, values: NDArray[np.generic]) -> None:
    if not np.isfinite(values).all():
        bad = int(np.count_nonzero(~np.isfinite(values)))
        raise ReplyError(f"{what} holds {bad} NaN or infinite values")
