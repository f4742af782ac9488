"""The worked example of `docs/strategies.md`, run as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import strategies
from simulation.inline import InlineGrid
from strategies import RoundRecord, TwoPhaseStrategy
from strategies.answering import answer_roll_call

DOCS = Path(strategies.__file__).parents[1] / "docs" / "strategies.md"

app = ClientApp()


def name_of(context: Context) -> str:
    return str(context.node_config["partition-id"])


@app.train("sketch")
def sketch(message: Message, context: Context) -> Message:
    """Client 4 has the largest loss, client 0 the smallest."""
    loss = 1.0 + int(name_of(context))
    content = answer_roll_call(message, name=name_of(context), examples=10, loss=loss)
    return Message(content, reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    server_round = message.content.config_records["config"]["round"]
    metrics = {"round": server_round, "num-examples": 10, "train-loss": 1.0}
    content = {
        "client": ConfigRecord({"name": name_of(context)}),
        "arrays": ArrayRecord({"w": Array(np.ones(3))}),
        "metrics": MetricRecord(metrics),  # type: ignore[arg-type]
    }
    return Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]


def test_the_example_runs_as_printed() -> None:
    section = DOCS.read_text().split("## A seventeenth")[1]
    blocks = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert len(blocks) == 1
    assert len(blocks[0].splitlines()) < 30
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(blocks[0], str(DOCS), "exec"), names)
    strategy: TwoPhaseStrategy = names["SteadyLoss"](clients_per_round=2)
    records: list[RoundRecord] = []
    result = strategy.start(
        InlineGrid(app, 5),
        ArrayRecord({"w": Array(np.zeros(3))}),
        num_rounds=3,
        evaluate_every=10,
        on_round=lambda record, arrays: records.append(record),
    )
    assert [record.selected for record in records] == [["4", "3"]] * 3
    np.testing.assert_array_equal(result.arrays["w"].numpy(), np.ones(3))
    assert set(strategy.state["losses"]) == set("01234")
