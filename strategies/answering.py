"""The client's side of the roll call, for any Flower ClientApp."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from flwr.app import Message, RecordDict

from strategies.arrays import pack
from strategies.messages import Arrays
from strategies.records import Record, config_of, content_of, metrics_of
from strategies.sketch import SketchSpec

__all__ = ["answer_roll_call"]


def answer_roll_call(
    message: Message,
    *,
    name: str,
    examples: int,
    update: Arrays | None = None,
    loss: float | None = None,
) -> RecordDict:
    """Return what to reply to a `train.sketch` or `query.name` message.

    Parameters
    ----------
    message : Message
        The roll call; its config says which of sketch, norm and loss are wanted.
    name : str
        The client's name, the same in every round.
    examples : int
        Local training examples.
    update : mapping of str to array, optional
        The local update per floating-point array of the model, in the gradient's direction (model
        received - model trained). Needed if the message asks for a sketch or a norm.
    loss : float, optional
        Mean local loss of the model received. Needed if the message asks for a loss.

    Returns
    -------
    RecordDict
        The reply's content; more records may be added.

    Raises
    ------
    ValueError
        If the message asks for something that was not given.
    """
    config = cast("dict[str, Any]", message.content["config"])
    needs = set(config.get("needs", ()))  # a `query.name` message has none
    metrics: dict[str, float] = {"round": config["round"], "num-examples": examples}
    records: dict[str, Record] = {"client": config_of({"name": name})}
    if needs & {"loss", "batch-loss"}:
        if loss is None:
            raise ValueError("the roll call asks for the loss")
        metrics["loss"] = loss
    if needs & {"sketch", "norm"}:
        if update is None:
            raise ValueError("the roll call asks for the update's sketch or norm")
        if "norm" in needs:
            squares = (float(np.square(v, dtype=np.float64).sum()) for v in update.values())
            metrics["norm"] = sum(squares) ** 0.5
        if "sketch" in needs:
            spec = SketchSpec(
                ratio=config["sketch-ratio"],
                kind=config["sketch-kind"],
                layers=tuple(config["sketch-layers"]),
                seed=config["sketch-seed"],
            )
            values = spec.apply(config["round"], update)
            records["sketch"] = pack({"values": values})
    records["metrics"] = metrics_of(metrics)
    return content_of(records)
