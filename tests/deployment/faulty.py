"""This project's ClientApp, made to misbehave as its node config says.

`fault="sketch:2:nan train:3:raise"` in the node config: at the roll call of round 2 answer with
NaN, in the training phase of round 3 raise.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from client.app import app as genuine

Change = Callable[[np.ndarray], np.ndarray]

CHANGES: dict[str, Change] = {
    "nan": lambda values: np.where(np.arange(values.size) == 0, np.nan, values.ravel()),
    "infinite": lambda values: np.where(np.arange(values.size) == 0, np.inf, values.ravel()),
    "huge": lambda values: values * 1e6,
    "misshapen": lambda values: values.ravel()[:-1],
}


class Faulty(ClientApp):
    """Calls the genuine app, and spoils what it does."""

    def __call__(self, message: Message, context: Context) -> Message:
        kind = self._fault(message, context)
        if kind == "raise":
            raise RuntimeError("told to raise")
        if kind == "die":
            os._exit(1)
        if kind == "hang":
            time.sleep(3600)
        if kind == "mark":  # gives the test the time to do something to this node
            Path(str(context.node_config["mark"])).touch()
            time.sleep(6)
        reply = genuine(message, context)
        if kind == "late":  # the test says when
            release = Path(str(context.node_config["mark"])).with_suffix(".release")
            while not release.exists():
                time.sleep(0.5)
        if kind in CHANGES and not reply.has_error():
            key = "sketch" if "sketch" in reply.content else "arrays"
            reply.content[key] = changed(reply.content.array_records[key], CHANGES[kind])
        if message.metadata.message_type == "train.sketch" and not reply.has_error():
            reply = self._replay(reply, context, old=kind == "old")
        return reply

    @staticmethod
    def _fault(message: Message, context: Context) -> str:
        config = message.content.config_records.get("config", {})
        phase = message.metadata.message_type.removeprefix("train.")
        for fault in str(context.node_config.get("fault", "")).split():
            in_phase, in_round, kind = fault.split(":")
            if in_phase == phase and int(in_round) == config.get("round"):
                return kind
        return ""

    @staticmethod
    def _replay(reply: Message, context: Context, *, old: bool) -> Message:
        """Keep every sketch, and if told to, answer with the one of the round before."""
        before = {key: context.state.get(f"before-{key}") for key in ("sketch", "metrics")}
        for key in before:
            context.state[f"before-{key}"] = reply.content[key]
            if old:
                reply.content[key] = before[key]
        return reply


def changed(record: ArrayRecord, change: Change) -> ArrayRecord:
    """Return the record with its first array changed."""
    arrays = {name: array.numpy() for name, array in record.items()}
    first = next(iter(arrays))
    new = change(arrays[first]).astype(arrays[first].dtype)
    arrays[first] = new.reshape(arrays[first].shape) if new.size == arrays[first].size else new
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})


app = Faulty()
