"""What every `Grid` of this project does on one machine: take messages, hand out replies.

A message is worked on when its reply is first asked for, in the order of sending. Everything that
crosses the border between server and client is copied as far as it can be changed, so that nobody
sees what another does to a record.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from itertools import count

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from strategies.records import Record, content_of

__all__ = ["RUN_ID", "LocalGrid", "client_nodes", "copied", "with_content"]

RUN_ID = 1
_TASK_ID = 1
_FIRST_NODE_ID = 1001  # apart from the SuperLink's own, and no partition's number


def client_nodes(num_clients: int, node_ids: Sequence[int] | None) -> Sequence[int]:
    """Return the clients' node ids, by default consecutive.

    Raises
    ------
    ValueError
        If there is no client, or node ids are not distinct or not one per client.
    """
    if num_clients < 1:
        raise ValueError(f"num_clients = {num_clients}: must be at least 1")
    if node_ids is None:
        return range(_FIRST_NODE_ID, _FIRST_NODE_ID + num_clients)
    if len(set(node_ids)) != num_clients or len(node_ids) != num_clients:
        raise ValueError(f"node_ids: must be {num_clients} distinct numbers, one per client")
    return node_ids


class LocalGrid(Grid):
    """A Grid whose messages are answered by `answer`.

    Parameters
    ----------
    nodes : collection of int
        The clients' node ids.
    """

    def __init__(self, nodes: Collection[int]) -> None:
        self._nodes = nodes
        self._run = Run.create_empty(RUN_ID)
        self._pending: dict[str, Message] = {}
        self._numbers = count(1)
        # What Flower sets when it starts a ServerApp; `Message` reads it.
        TaskIdentity.run_id = RUN_ID
        TaskIdentity.task_id = _TASK_ID
        TaskIdentity.node_id = SUPERLINK_NODE_ID

    @abstractmethod
    def answer(self, messages: Sequence[Message]) -> list[Message]:
        """Return the clients' replies, in the messages' order; a client need not reply."""

    @property
    def run(self) -> Run:
        """The run; only its id is meaningful."""
        return self._run

    def set_run(self, run: Run) -> None:
        """Do nothing: there is one run."""

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message, as Flower's grids do."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the clients' node ids."""
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take messages and return their ids; one to a node that does not exist is dropped.

        Raises
        ------
        ValueError
            If a message is a reply.
        """
        ids = []
        # Copied now, for the sender may go on to change its records; a record that many messages
        # share is copied once.
        copies: dict[int, Record] = {}
        for message in messages:
            if message.metadata.reply_to_message_id:
                raise ValueError("a reply cannot be pushed")
            if message.metadata.dst_node_id in self._nodes:
                message_id = self._label(message)
                records = {
                    name: copies.get(id(record)) or copies.setdefault(id(record), copied(record))
                    for name, record in message.content.items()
                }
                self._pending[message_id] = with_content(message, records)
                ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Have the clients work on the messages named, and return their replies."""
        pending = [self._pending.pop(i) for i in message_ids if i in self._pending]
        replies = self.answer(pending)
        for reply in replies:
            self._label(reply)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push messages and pull the replies; a timeout has no effect."""
        return self.pull_messages(self.push_messages(messages))

    def _label(self, message: Message) -> str:
        message_id = str(next(self._numbers))
        message.metadata.__dict__["_message_id"] = message_id  # as Flower's own grids do
        return message_id


def with_content(message: Message, records: dict[str, Record]) -> Message:
    """Return the message with other content, past the checks that it has passed already."""
    copy = Message.__new__(Message)
    copy.__dict__.update(message.__dict__, _content=content_of(records))
    return copy


def copied(record: Record) -> Record:
    """Return a copy that shares only what cannot be changed: an Array's bytes, numbers, texts."""
    copy = record.copy()
    if not isinstance(record, ArrayRecord):
        values = copy.__dict__["_data"]
        values.update({k: v.copy() for k, v in values.items() if isinstance(v, list)})
    return copy
