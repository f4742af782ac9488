"""A Flower `Grid` that runs the ClientApp in this process.

Same messages, same ClientApp, same strategies as on Flower's Ray backend, without its processes:
a message is worked on when its reply is first asked for, in the order of sending. Everything that
crosses the border between server and client is copied as far as it can be changed, so that nobody
sees what another does to a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count

from flwr.app import (
    ArrayRecord,
    Context,
    Error,
    Message,
    RecordDict,
)
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import ClientAppException
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from strategies.records import Record, content_of

__all__ = ["CohortHandler", "InlineGrid"]

CohortHandler = Callable[[Sequence[Message], Sequence[Context]], list[Message] | None]

_RUN_ID = 1
_TASK_ID = 1
_FIRST_NODE_ID = 1001  # apart from the SuperLink's own, and no partition's number


class InlineGrid(Grid):
    """Runs clients one after another in this process, each with a `Context` of its own.

    As on Flower's Ray backend, a client that raises becomes an error reply with code 2 and its
    state is as it was before the message; a client that returns None never replies.

    Parameters
    ----------
    client_app : ClientApp
        What every client runs.
    num_clients : int
        How many clients there are, at least 1. Client i has `partition-id` i.
    run_config : mapping of str to scalar, optional
        The run config every client sees.
    node_ids : sequence of int, optional
        The clients' node ids; by default consecutive.
    answer_cohort : callable, optional
        Answers several messages at once that differ in nothing but the node they go to, or returns
        None to have them answered one by one. It must equal the ClientApp's handlers.

    Raises
    ------
    ValueError
        If there is no client, or node ids are not distinct or not one per client.
    """

    def __init__(
        self,
        client_app: ClientApp,
        num_clients: int,
        *,
        run_config: UserConfig | None = None,
        node_ids: Sequence[int] | None = None,
        answer_cohort: CohortHandler | None = None,
    ) -> None:
        """Give every client its context."""
        if num_clients < 1:
            raise ValueError(f"num_clients = {num_clients}: must be at least 1")
        if node_ids is None:
            node_ids = range(_FIRST_NODE_ID, _FIRST_NODE_ID + num_clients)
        if len(set(node_ids)) != num_clients or len(node_ids) != num_clients:
            raise ValueError(f"node_ids: must be {num_clients} distinct numbers, one per client")
        self._app = client_app
        self._answer_cohort = answer_cohort
        self._run = Run.create_empty(_RUN_ID)
        self._contexts = {
            node_id: Context(
                run_id=_RUN_ID,
                node_id=node_id,
                node_config={"partition-id": partition, "num-partitions": num_clients},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for partition, node_id in enumerate(node_ids)
        }
        self._pending: dict[str, Message] = {}
        self._numbers = count(1)
        # What Flower sets when it starts a ServerApp; `Message` reads it.
        TaskIdentity.run_id = _RUN_ID
        TaskIdentity.task_id = _TASK_ID
        TaskIdentity.node_id = SUPERLINK_NODE_ID

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
        return list(self._contexts)

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
            if message.metadata.dst_node_id in self._contexts:
                message_id = self._label(message)
                records = {
                    name: copies.get(id(record)) or copies.setdefault(id(record), _copied(record))
                    for name, record in message.content.items()
                }
                self._pending[message_id] = _with_content(message, records)
                ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Have the clients work on the messages named, and return their replies."""
        pending = [self._pending.pop(i) for i in message_ids if i in self._pending]
        replies = self._answer_together(pending)
        if replies is None:
            replies = [reply for message in pending if (reply := self._answer(message))]
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push messages and pull the replies; a timeout has no effect."""
        return self.pull_messages(self.push_messages(messages))

    def _answer_together(self, messages: Sequence[Message]) -> list[Message] | None:
        if self._answer_cohort is None or len(messages) < 2 or not _are_alike(messages):
            return None
        nodes = [message.metadata.dst_node_id for message in messages]
        if len(set(nodes)) < len(nodes):
            return None
        contexts = [_copy_context(self._contexts[node]) for node in nodes]
        replies = self._answer_cohort(messages, contexts)
        if replies is None:
            return None
        self._contexts.update(zip(nodes, contexts, strict=True))
        for reply, context in zip(replies, contexts, strict=True):
            self._label(reply)
            if reply.has_content():
                _part(reply.content, context.state)
        return replies

    def _answer(self, message: Message) -> Message | None:
        context = _copy_context(self._contexts[message.metadata.dst_node_id])
        received = _with_content(message, _copied_records(message.content))
        try:
            reply = self._app(received, context)
        except Exception as error:  # whatever a client does wrong is its reply
            return self._error(message, error)
        self._contexts[message.metadata.dst_node_id] = context
        return None if reply is None else self._sent(reply)

    def _sent(self, reply: Message) -> Message:
        """Return a client's reply as the server gets it."""
        self._label(reply)
        if reply.has_error():
            return reply
        return _with_content(reply, _copied_records(reply.content))

    def _error(self, message: Message, error: Exception) -> Message:
        """Return the reply Flower's Ray backend makes of an exception."""
        raised = ClientAppException(str(error))
        reason = f"{type(raised)}:<'{raised}'>"
        code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        reply = Message(Error(code=code, reason=reason), reply_to=message)
        self._label(reply)
        return reply

    def _label(self, message: Message) -> str:
        message_id = str(next(self._numbers))
        message.metadata.__dict__["_message_id"] = message_id  # as Flower's own grids do
        return message_id


def _are_alike(messages: Sequence[Message]) -> bool:
    """Whether all messages are of one type and carry the same record objects."""
    first = messages[0]
    kind, records = first.metadata.message_type, first.content
    return all(
        message.metadata.message_type == kind
        and message.content.keys() == records.keys()
        and all(message.content[name] is record for name, record in records.items())
        for message in messages
    )


def _part(sent: RecordDict, kept: RecordDict) -> None:
    """Replace the records in `sent` that are in `kept` as well by copies."""
    shared = {id(record) for record in kept.values()}
    data = sent.__dict__["_data"]
    data.update({n: _copied(record) for n, record in data.items() if id(record) in shared})


def _with_content(message: Message, records: dict[str, Record]) -> Message:
    """Return the message with other content, past the checks that it has passed already."""
    copy = Message.__new__(Message)
    copy.__dict__.update(message.__dict__, _content=content_of(records))
    return copy


def _copy_context(context: Context) -> Context:
    return Context(
        run_id=context.run_id,
        node_id=context.node_id,
        node_config=dict(context.node_config),
        state=content_of(_copied_records(context.state)),
        run_config=dict(context.run_config),
    )


def _copied_records(records: RecordDict) -> dict[str, Record]:
    return {name: _copied(record) for name, record in records.items()}


def _copied(record: Record) -> Record:
    """Return a copy that shares only what cannot be changed: an Array's bytes, numbers, texts."""
    copy = record.copy()
    if not isinstance(record, ArrayRecord):
        values = copy.__dict__["_data"]
        values.update({k: v.copy() for k, v in values.items() if isinstance(v, list)})
    return copy
