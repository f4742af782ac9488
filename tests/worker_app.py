"""A ClientApp that worker processes import, and what it does wrong when it is told to."""

from __future__ import annotations

import os
from multiprocessing import parent_process
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from simulation.inline import InlineGrid
from strategies.arrays import pack, view

CLIENTS = 7

app = ClientApp()


def make_grid() -> InlineGrid:
    return InlineGrid(app, CLIENTS, run_config={"lr": 0.5})


def make_nothing() -> InlineGrid:
    if parent_process():
        raise ValueError("no data")
    return make_grid()


def exit_instead() -> InlineGrid:
    if parent_process():
        os._exit(3)
    return make_grid()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Count calls in the state and add the partition to the array; do wrong as the config says."""
    partition = int(context.node_config["partition-id"])
    config = cast("ConfigRecord", message.content["config"])
    calls = 1 + int(cast("int", context.state.config_records.get("calls", {"n": 0})["n"]))
    context.state["calls"] = ConfigRecord({"n": calls})
    wrong = cast("dict[str, int]", config)
    if wrong["raises"] == partition:
        raise ArithmeticError("no luck")
    if wrong["exits"] == partition:
        os._exit(3)
    x = view(cast("ArrayRecord", message.content["arrays"])["x"])
    metrics = MetricRecord({"calls": calls})
    return Message(
        RecordDict({"arrays": pack({"x": x + partition}), "metrics": metrics}), reply_to=message
    )


@app.query()
def pid(message: Message, context: Context) -> Message:
    """Say which process this is; keep nothing."""
    return Message(RecordDict({"pid": MetricRecord({"pid": os.getpid()})}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> None:
    """Reply nothing."""
