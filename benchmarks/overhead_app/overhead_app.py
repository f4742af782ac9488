"""One Ray simulation in which Flower's FedAvg and a two-phase strategy take turns.

The clients do next to nothing, so what is timed is the messages.
"""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from strategies import SCKMSelect, SketchSpec

MODEL = {"weight": np.zeros((10, 64), dtype=np.float32), "bias": np.zeros(10, dtype=np.float32)}
PICKED_OF = 3  # a third of the clients is picked

client = ClientApp()


def _reply(message: Message, context: Context, **records: ArrayRecord) -> Message:
    config = message.content.config_records["config"]
    metrics = {"num-examples": 1, "train-loss": 0.0}
    server_round = config.get("round", config.get("server-round", 0))
    content = RecordDict({"metrics": MetricRecord({**metrics, "round": server_round}), **records})
    return Message(content, reply_to=message)


@client.train()
def train(message: Message, context: Context) -> Message:
    arrays = ArrayRecord({name: Array(value) for name, value in MODEL.items()})
    return _reply(message, context, arrays=arrays)


@client.train("sketch")
def sketch(message: Message, context: Context) -> Message:
    config = message.content.config_records["config"]
    partition = int(context.node_config["partition-id"])
    shapes = {name: value.shape for name, value in MODEL.items()}
    entries = sum(SketchSpec(ratio=config["sketch-ratio"]).sizes(shapes).values())
    values = np.random.default_rng(partition).standard_normal(entries).astype(np.float32)
    reply = _reply(message, context, sketch=ArrayRecord({"values": Array(values)}))
    reply.content["client"] = ConfigRecord({"name": str(partition)})
    return reply


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    clients = len(list(grid.get_node_ids()))
    picked = max(1, clients // PICKED_OF)
    arrays = ArrayRecord({name: Array(value) for name, value in MODEL.items()})

    def fedavg(rounds: int, trained: int) -> float:
        strategy = FedAvg(
            fraction_train=trained / clients,
            fraction_evaluate=0.0,
            min_train_nodes=trained,
            min_available_nodes=clients,
        )
        started = time.perf_counter()
        strategy.start(grid, arrays, num_rounds=rounds)
        return (time.perf_counter() - started) / (rounds * trained)

    def two_phase(rounds: int) -> float:
        started = time.perf_counter()
        strategy = SCKMSelect(clients_per_round=picked, min_clients=clients)
        records = []
        strategy.start(
            grid,
            arrays,
            num_rounds=rounds,
            evaluate_every=0,
            on_round=lambda record, _: records.append(record),
        )
        messages = rounds * (clients + picked)
        assert sum(len(r.sketched) + len(r.replied) for r in records) == messages
        return (time.perf_counter() - started) / messages

    fedavg(1, clients)  # Ray's start
    rounds = int(config["rounds"])
    times = [
        {
            "two-phase": two_phase(rounds),
            "all": fedavg(rounds, clients),
            "cohort": fedavg(rounds, picked),
        }
        for _ in range(int(config["repeats"]))
    ]
    Path(str(config["out"])).write_text(json.dumps(times))
