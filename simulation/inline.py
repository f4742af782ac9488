"""A Flower `Grid` that runs the ClientApp in this process.

Same messages, same ClientApp, same strategies as on Flower's Ray backend, without its processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from logging import WARNING

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import ClientAppException
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from simulation.local_grid import RUN_ID, LocalGrid, client_nodes, copied, with_content
from strategies.records import Record, content_of

__all__ = ["CohortHandler", "InlineGrid"]

CohortHandler = Callable[[Sequence[Message], Sequence[Context]], list[Message] | None]


class InlineGrid(LocalGrid):
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
        None to have them answered one by one, as they are if it raises. It must equal the
        ClientApp's handlers and leave the messages as they are.

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
        self._app = client_app
        self._answer_cohort = answer_cohort
        self._contexts = {
            node_id: Context(
                run_id=RUN_ID,
                node_id=node_id,
                node_config={"partition-id": partition, "num-partitions": num_clients},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for partition, node_id in enumerate(client_nodes(num_clients, node_ids))
        }
        super().__init__(self._contexts)

    def answer(self, messages: Sequence[Message]) -> list[Message]:
        """Return the clients' replies; the messages' ids are those the replies refer to."""
        replies = self._answer_together(messages)
        if replies is None:
            replies = [reply for message in messages if (reply := self._answer(message))]
        return replies

    def keeps_state(self, node_id: int) -> bool:
        """Whether the client has records in its context's state."""
        return bool(self._contexts[node_id].state)

    def _answer_together(self, messages: Sequence[Message]) -> list[Message] | None:
        if self._answer_cohort is None or len(messages) < 2 or not _are_alike(messages):
            return None
        nodes = [message.metadata.dst_node_id for message in messages]
        if len(set(nodes)) < len(nodes):
            return None
        contexts = [_copy_context(self._contexts[node]) for node in nodes]
        try:
            replies = self._answer_cohort(messages, contexts)
        except Exception as error:  # one by one it is the error of those clients that raise
            log(WARNING, "answering %d clients one by one: %r", len(nodes), error)
            return None
        if replies is None:
            return None
        self._contexts.update(zip(nodes, contexts, strict=True))
        for reply, context in zip(replies, contexts, strict=True):
            if reply.has_content():
                _part(reply.content, context.state)
        return replies

    def _answer(self, message: Message) -> Message | None:
        context = _copy_context(self._contexts[message.metadata.dst_node_id])
        received = with_content(message, _copied_records(message.content))
        try:
            reply = self._app(received, context)
        except Exception as error:  # whatever a client does wrong is its reply
            return _error(message, error)
        self._contexts[message.metadata.dst_node_id] = context
        if reply is None or reply.has_error():
            return reply
        return with_content(reply, _copied_records(reply.content))


def _error(message: Message, error: Exception) -> Message:
    """Return the reply Flower's Ray backend makes of an exception."""
    raised = ClientAppException(str(error))
    reason = f"{type(raised)}:<'{raised}'>"
    code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    return Message(Error(code=code, reason=reason), reply_to=message)


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
    data.update({n: copied(record) for n, record in data.items() if id(record) in shared})


def _copy_context(context: Context) -> Context:
    return Context(
        run_id=context.run_id,
        node_id=context.node_id,
        node_config=dict(context.node_config),
        state=content_of(_copied_records(context.state)),
        run_config=dict(context.run_config),
    )


def _copied_records(records: RecordDict) -> dict[str, Record]:
    return {name: copied(record) for name, record in records.items()}
