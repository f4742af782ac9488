"""Rounds on digits, by Muster's exchange and by Flower's in turns; or rounds with a large model."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from server.config import RunConfig
from strategies import SCKMSelect
from strategies.exchange import Answers, Exchange

server = ServerApp()


class FlowerExchange(Exchange):
    """The same messages by Flower's own `send_and_receive`."""

    def send(self, grid: Grid, messages: Sequence[Message], *, quorum: int) -> Answers:
        answers = Answers()
        for reply in grid.send_and_receive(messages, timeout=self.deadline):
            node = reply.metadata.src_node_id
            if reply.has_error():
                answers.failed[node] = str(reply.error)
            else:
                answers.replies[node], answers.seconds[node] = reply, 0.0
        return answers


@server.main()
def main(grid: Grid, context: Context) -> None:
    config = dict(context.run_config)
    turns, clients, rounds = (int(config.pop(key)) for key in ("turns", "clients", "rounds"))
    out = Path(str(config["out"]))
    if config.pop("large"):
        large_rounds(config, clients, rounds, grid)
        return

    from tasks.data import load_test_data
    from tasks.learning import get_weights
    from tasks.models import build_model

    test = load_test_data("digits", "", seed=0)
    model = build_model("softmax", test.x_test.shape[1:], test.num_classes, seed=0)
    arrays = ArrayRecord({name: Array(value) for name, value in get_weights(model).items()})
    train_config = ConfigRecord(
        {
            "local-steps": 10,
            "batch-size": 32,
            "learning-rate": 0.1,
            "client-threads": 1,
            "num-classes": test.num_classes,
        }
    )

    def round_time(exchange: type[Exchange]) -> float:
        strategy = SCKMSelect(clients_per_round=2, min_clients=clients)
        strategy._exchange = exchange(deadline=600.0, grace=600.0)
        strategy._wait_for_clients(grid)
        records: list[Any] = []
        started = time.perf_counter()
        strategy.start(
            grid,
            arrays,
            num_rounds=1,
            train_config=train_config,
            evaluate_every=0,
            on_round=lambda record, _: records.append(record),
        )
        took = time.perf_counter() - started
        assert len(records[0].sketched) == clients, records[0]
        assert len(records[0].replied) == 2, records[0]
        return took

    def two_phases() -> float:
        """Time two rounds of FedAvg, each one `send_and_receive` to all clients."""
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=clients)
        settings = ConfigRecord(
            {**train_config, "round": 1, "seed": 0, "kept": False, "needs": list[str]()}
        )
        started = time.perf_counter()
        result = strategy.start(grid, arrays, num_rounds=2, train_config=settings)
        assert len(result.train_metrics_clientapp) == 2
        return time.perf_counter() - started

    round_time(Exchange)  # the clients' first message installs the app
    times = [
        {
            "two phases": two_phases(),
            "same messages": round_time(FlowerExchange),
            "muster": round_time(Exchange),
        }
        for _ in range(turns)
    ]
    out.write_text(json.dumps(times))


def large_rounds(config: dict[str, Any], clients: int, rounds: int, grid: Grid) -> None:
    """Run the project's own rounds."""
    from server.run import run

    values = {"num-server-rounds": rounds, "clients-per-round": 2, "min-clients": clients}
    config = {key: value for key, value in config.items() if key in RunConfig().to_run_config()}
    run(
        RunConfig.parse({**config, **values, "local-steps": 1, "evaluate-every": 100}),
        grid,
        wait=600,
        lean=True,
    )


def large_model(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """Return a model of 15 million parameters, as VGG16 has for images of CIFAR's size."""
    from torch import nn

    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 3800),
        nn.ReLU(),
        nn.Linear(3800, 3800),
        nn.ReLU(),
        nn.Linear(3800, num_classes),
    )
