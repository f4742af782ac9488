"""Handing checked replies to the Flower strategy that aggregates them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, FedAvgM, Strategy
from numpy.typing import NDArray

from strategies.arrays import lend, pack, view
from strategies.messages import TrainReply
from strategies.records import AggregationContent, metrics_of

__all__ = ["aggregate", "announce"]


def announce(
    aggregator: Strategy, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
) -> None:
    """Show the aggregator the model that a round starts from.

    Flower's server optimisers (FedAvgM, FedAdam, ...) and its privacy wrappers note it in
    `configure_train`. That method would also draw clients, from the global random generator and
    waiting for a number of them of its own; with a training fraction of 0 it does not.
    """
    inner: object = aggregator
    while not isinstance(inner, FedAvg) and hasattr(inner, "strategy"):
        inner = inner.strategy
    if not isinstance(inner, FedAvg):
        aggregator.configure_train(server_round, arrays, config, grid)
        return
    if isinstance(inner, FedAvgM):
        inner.current_arrays = None  # else it goes on from the first model it saw and its own steps
    fraction, inner.fraction_train = inner.fraction_train, 0.0
    try:
        aggregator.configure_train(server_round, arrays, config, grid)
    finally:
        inner.fraction_train = fraction


def aggregate(
    aggregator: Strategy,
    server_round: int,
    replies: Sequence[tuple[Message, TrainReply]],
    *,
    model: ArrayRecord,
    by_examples: bool,
    coefficients: NDArray[np.float64] | None,
) -> ArrayRecord | None:
    """Aggregate one round's replies with a Flower strategy.

    Parameters
    ----------
    aggregator : Strategy
        Any Flower strategy; only its `aggregate_train` is called.
    server_round : int
        The round.
    replies : sequence of (Message, TrainReply)
        In the clients' order; the order fixes the sum's rounding.
    model : ArrayRecord
        The model the round started from.
    by_examples : bool
        Weigh by training examples (FedAvg) or all the same (as both papers do).
    coefficients : array of shape (R,), float64, or None
        If given, a plain mean must come out as w + sum_i c_i (w_i - w): each reply is moved to
        w + R c_i (w_i - w) and weighed the same.

    Returns
    -------
    ArrayRecord or None
        The new model, of the same types as the old (Flower's mean of an integer buffer is float64,
        as is FedAdam's whole model); None if the strategy declines (Bulyan, say, with too few
        replies).
    """
    messages = []
    for row, (message, reply) in enumerate(replies):
        arrays, weight = reply.arrays, float(reply.examples) if by_examples else 1.0
        if coefficients is not None:
            arrays, weight = _move(model, arrays, len(replies) * coefficients[row]), 1.0
        # Flower demands one array record and the same metrics in every reply.
        message.content = AggregationContent(lend(arrays), metrics_of({"num-examples": weight}))
        messages.append(message)
    aggregated = aggregator.aggregate_train(server_round, messages)[0]
    if aggregated is None:
        return None
    # Decoded once here, not by everyone who reads the new model.
    values = {n: _as_type(view(array), model[n].dtype) for n, array in aggregated.items()}
    return pack(values, copy=False)


def _as_type(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    kind = np.dtype(dtype)
    if np.issubdtype(kind, np.integer):
        values = np.rint(values)
    return np.asarray(values, dtype=kind)


def _move(model: ArrayRecord, arrays: ArrayRecord, factor: float) -> ArrayRecord:
    moved = {}
    for name, array in arrays.items():
        start, value = view(model[name]), view(array)
        if np.issubdtype(value.dtype, np.floating):
            value = (start + factor * (value - start)).astype(value.dtype)
        moved[name] = np.asarray(value)
    return pack(moved)
