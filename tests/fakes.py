"""Stand-ins for Flower's backend, for the clock and for clients; all of them in this one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from strategies.answering import answer_roll_call
from strategies.randomness import derive_rng


@dataclass
class FakeClock:
    """A clock that only sleeping, or a costly poll, moves on."""

    now: float = 1000.0
    naps: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0, "a pause of 0 s would spin"
        self.naps.append(seconds)
        self.now += seconds


@dataclass
class FakeGrid(Grid):
    """A Grid whose nodes answer on time, late, wrongly or never, as told.

    `delays[node]` is the time from push to reply (None: never), `errors[node]` makes the reply an
    error, written by the SuperLink (source node 1) where the node is in `by_superlink`.
    """

    clock: FakeClock
    delays: dict[int, float | None]
    errors: dict[int, Error] = field(default_factory=dict)
    by_superlink: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    largest_push: int | None = None
    poll_seconds: float = 0.0
    pushes: list[list[int]] = field(default_factory=list)
    polls: list[list[str]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    _due: dict[str, tuple[float, Message]] = field(default_factory=dict)
    _numbers: Any = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        TaskIdentity.run_id = 1
        TaskIdentity.task_id = 1
        TaskIdentity.node_id = SUPERLINK_NODE_ID

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        self.pushes.append([message.metadata.dst_node_id for message in messages])
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{next(self._numbers)}"
        if self.largest_push is not None and len(messages) > self.largest_push:
            return []  # what Flower answers to a payload that is too large
        ids: list[Any] = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node in self.refused:
                ids.append(None)
                continue
            self.messages.append(message)
            ids.append(message.metadata.message_id)
            delay = self.delays[node]
            if delay is not None:
                self._due[message.metadata.message_id] = (self.clock.now + delay, message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        wanted = list(message_ids)
        self.polls.append(wanted)
        self.clock.now += self.poll_seconds
        ready = [i for i in wanted if i in self._due and self._due[i][0] <= self.clock.now]
        return [self._reply(self._due.pop(i)[1]) for i in ready]

    def _reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        content = RecordDict({"metrics": MetricRecord({"node": node})})
        reply = Message(self.errors.get(node, content), reply_to=message)
        if node in self.by_superlink:
            reply.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
        return reply

    @property
    def run(self) -> Run:
        return Run.create_empty(1)

    def set_run(self, run: Run) -> None: ...

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        return list(self.delays)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        raise NotImplementedError


Fault = Callable[[str, Message, RecordDict], RecordDict]


class StubClients:
    """A ClientApp without torch: a client's training adds a random step of its own to the model.

    Parameters
    ----------
    faults : mapping of client name to function
        Called with the kind of message (`name`, `sketch`, `train`, `evaluate`), the message and the
        honest answer; returns the answer to give instead, or raises.
    """

    def __init__(self, faults: Mapping[str, Fault] | None = None) -> None:
        self.app = ClientApp()
        self.faults = dict(faults or {})
        self.trained: Counter[tuple[int, str]] = Counter()
        self.messages: list[tuple[int, str, str]] = []
        for kind, register in (
            ("name", self.app.query("name")),
            ("sketch", self.app.train("sketch")),
            ("train", self.app.train()),
            ("evaluate", self.app.evaluate()),
        ):
            register(self._handler(kind))

    def asked(self, kind: str, server_round: int) -> list[str]:
        """Return who got a message of this kind in a round."""
        return [who for turn, what, who in self.messages if (turn, what) == (server_round, kind)]

    def _handler(self, kind: str) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            name = client_of(context)
            turn = int(message.content["config"]["round"])
            self.messages.append((turn, kind, name))
            content = getattr(self, f"_{kind}")(message, context, name)
            content["client"] = ConfigRecord({"name": name})
            if name in self.faults:
                content = self.faults[name](kind, message, content)
            return Message(content, reply_to=message)

        return handle

    def _name(self, message: Message, context: Context, name: str) -> RecordDict:
        return RecordDict({"metrics": MetricRecord({"num-examples": examples_of(name)})})

    def _sketch(self, message: Message, context: Context, name: str) -> RecordDict:
        received = message.content["arrays"]
        config = message.content["config"]
        update = None
        if {"sketch", "norm"} & set(config["needs"]):
            model = self._train_model(received, config, name)
            update = {k: received[k].numpy() - model[k].numpy() for k in ("w", "b")}
            if config["keep"]:
                context.state["kept"] = model
                context.state["when"] = MetricRecord({"round": config["round"]})
        loss = loss_of(name, config["round"])
        return answer_roll_call(
            message, name=name, examples=examples_of(name), update=update, loss=loss
        )

    def _train(self, message: Message, context: Context, name: str) -> RecordDict:
        config = message.content["config"]
        metrics = MetricRecord({"num-examples": examples_of(name), "round": config["round"]})
        content = RecordDict({"metrics": metrics})
        if config["kept"]:
            if context.state.get("when", {}).get("round") != config["round"]:
                metrics["needs-model"] = 1
                return content
            content["arrays"] = context.state["kept"]
        else:
            content["arrays"] = self._train_model(message.content["arrays"], config, name)
        metrics["train-loss"] = loss_of(name, int(config["round"]))
        return content

    def _evaluate(self, message: Message, context: Context, name: str) -> RecordDict:
        accuracy = 1 / (1 + int(name))
        return RecordDict({"metrics": MetricRecord({"accuracy": accuracy, "loss": 1 - accuracy})})

    def _train_model(self, model: ArrayRecord, config: ConfigRecord, name: str) -> ArrayRecord:
        self.trained[int(config["round"]), name] += 1
        return trained_model(model, int(config["seed"]), int(config["round"]), name)


def client_of(context: Context) -> str:
    return str(context.node_config["partition-id"])


def examples_of(name: str) -> int:
    return 10 + 7 * int(name)


def loss_of(name: str, server_round: int) -> float:
    return 1.0 + (5 * int(name) + 3 * server_round) % 7 / 10


def trained_model(model: ArrayRecord, seed: int, server_round: int, name: str) -> ArrayRecord:
    """Return what a stub client makes of a model."""
    rng = derive_rng(seed, server_round, name, "stub")
    arrays = {}
    for key in ("w", "b"):
        value = model[key].numpy()
        step = (0.1 * (1 + int(name)) * rng.standard_normal(value.shape)).astype(np.float32)
        arrays[key] = Array(value + step)
    arrays["count"] = Array(np.asarray(model["count"].numpy() + 1))
    return ArrayRecord(arrays)


def stub_model() -> ArrayRecord:
    """Return a model of two float32 layers (400 and 10 entries) and an integer buffer."""
    rng = np.random.Generator(np.random.Philox(7))
    return ArrayRecord(
        {
            "w": Array(rng.standard_normal((40, 10)).astype(np.float32)),
            "b": Array(np.zeros(10, np.float32)),
            "count": Array(np.array(0, np.int64)),
        }
    )
