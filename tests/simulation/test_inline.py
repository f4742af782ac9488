from collections.abc import Sequence

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from simulation.inline import InlineGrid

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Count calls in the state, add the partition to the array, then spoil everything received."""
    state = context.state.config_records.get("calls", ConfigRecord({"count": 0, "seen": []}))
    state["count"] = int(state["count"]) + 1
    state["seen"].append(context.node_config["partition-id"])
    context.state["calls"] = state
    if message.content["config"]["fail"]:
        raise ArithmeticError("no\nluck")
    values = message.content["arrays"]["x"].numpy() + context.node_config["partition-id"]
    reply = RecordDict(
        {
            "arrays": ArrayRecord({"x": Array(values)}),
            "metrics": MetricRecord({"calls": state["count"], "seen": list(state["seen"])}),
        }
    )
    context.state["kept"] = reply["metrics"]
    message.content["config"]["list"].append(99)
    del message.content["arrays"]["x"]
    context.run_config["lr"] = -1.0
    return Message(reply, reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    return Message(RecordDict({"kept": context.state["kept"]}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return None  # type: ignore[return-value]


def content(*, fail: bool = False) -> RecordDict:
    arrays = ArrayRecord({"x": Array(np.arange(3.0))})
    return RecordDict({"arrays": arrays, "config": ConfigRecord({"fail": fail, "list": [1]})})


def send(grid: InlineGrid, kind: str, *, fail: bool = False) -> list[Message]:
    shared = content(fail=fail)
    replies = grid.send_and_receive([Message(shared, node, kind) for node in grid.get_node_ids()])
    assert shared == content(fail=fail)
    return replies


def test_each_client_has_its_own_context_and_copies() -> None:
    grid = InlineGrid(app, 3)
    for calls in (1, 2):
        replies = send(grid, "train")
        for partition, (node, reply) in enumerate(zip(grid.get_node_ids(), replies, strict=True)):
            assert reply.metadata.src_node_id == node
            x = reply.content["arrays"]["x"].numpy()
            np.testing.assert_array_equal(x, np.arange(3.0) + partition)
            assert reply.content["metrics"] == {"calls": calls, "seen": [partition] * calls}


def test_what_a_client_keeps_is_not_shared_with_the_server() -> None:
    run_config: dict[str, bool | float | int | str] = {"lr": 0.5}
    grid = InlineGrid(app, 2, run_config=run_config)
    for reply in send(grid, "train"):
        reply.content["metrics"]["calls"] = -7
        reply.content["metrics"]["seen"].append(-7)
    for partition, reply in enumerate(send(grid, "query")):
        assert reply.content["kept"] == {"calls": 1, "seen": [partition]}
    assert run_config == {"lr": 0.5}


def test_an_exception_is_an_error_reply_and_rolls_the_state_back() -> None:
    grid = InlineGrid(app, 2)
    send(grid, "train")
    for node, reply in zip(grid.get_node_ids(), send(grid, "train", fail=True), strict=True):
        assert reply.has_error()
        assert reply.error.code == 2
        assert "ClientAppException" in str(reply.error.reason)
        assert "no\nluck" in str(reply.error.reason)
        assert reply.metadata.src_node_id == node
    replies = send(grid, "train")
    assert [reply.content["metrics"]["calls"] for reply in replies] == [2, 2]


def test_an_unknown_message_type_is_an_error_reply() -> None:
    (reply,) = send(InlineGrid(app, 1), "train.sketch")
    assert reply.error.code == 2
    assert "sketch" in str(reply.error.reason)


def test_no_reply_for_none() -> None:
    assert send(InlineGrid(app, 2), "evaluate") == []


def test_replies_are_pulled_once_and_only_those_asked_for() -> None:
    grid = InlineGrid(app, 3)
    first, second, third = grid.get_node_ids()
    messages = [Message(content(), node, "train") for node in (first, 5, second, third)]
    ids = grid.push_messages(messages)
    assert [
        message.metadata.message_id for message in messages if message.metadata.message_id
    ] == ids
    (reply,) = grid.pull_messages(ids[1:2])
    assert reply.metadata.src_node_id == second
    assert reply.metadata.reply_to_message_id == ids[1]
    replies = grid.pull_messages([*ids, "unknown"])
    assert [reply.metadata.src_node_id for reply in replies] == [first, third]
    assert grid.pull_messages(ids) == []


def test_a_message_is_taken_as_it_was_when_pushed() -> None:
    grid = InlineGrid(app, 1)
    message = Message(content(), grid.get_node_ids()[0], "train")
    ids = grid.push_messages([message])
    message.content["config"]["fail"] = True
    (reply,) = grid.pull_messages(ids)
    assert not reply.has_error()


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="num_clients = 0"):
        InlineGrid(app, 0)
    for node_ids in ([4], [4, 4], [4, 5, 6]):
        with pytest.raises(ValueError, match="2 distinct numbers"):
            InlineGrid(app, 2, node_ids=node_ids)
    grid = InlineGrid(app, 1)
    (reply,) = send(grid, "train")
    with pytest.raises(ValueError, match="reply"):
        grid.push_messages([reply])


def test_a_cohort_is_answered_at_once_where_nothing_but_the_node_differs() -> None:
    asked: list[tuple[str, int]] = []

    def answer_cohort(messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
        asked.append((messages[0].metadata.message_type, len(messages)))
        return [app(message, context) for message, context in zip(messages, contexts, strict=True)]

    grid = InlineGrid(app, 3, answer_cohort=answer_cohort)
    shared = content()
    nodes = grid.get_node_ids()

    def exchange(contents: list[RecordDict], nodes: list[int]) -> None:
        pairs = zip(contents, nodes, strict=True)
        grid.send_and_receive([Message(RecordDict(dict(c)), node, "query") for c, node in pairs])

    send(InlineGrid(app, 3), "train")
    for node in nodes:
        grid.send_and_receive([Message(content(), node, "train")])
    assert asked == []
    exchange([shared] * 3, nodes)
    exchange([shared, content(), shared], nodes)  # equal records are not the same records
    exchange([shared] * 2, [nodes[0], nodes[0]])
    exchange([shared], nodes[:1])
    assert asked == [("query", 3)]


def test_what_a_cohort_keeps_is_not_shared_with_the_server() -> None:
    def answer_cohort(messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
        replies = []
        for message, context in zip(messages, contexts, strict=True):
            context.state["kept"] = kept = MetricRecord({"x": [1]})
            replies.append(Message(RecordDict({"kept": kept}), reply_to=message))
        return replies

    grid = InlineGrid(app, 2, answer_cohort=answer_cohort)
    replies = send(grid, "train")
    assert [reply.metadata.src_node_id for reply in replies] == grid.get_node_ids()
    for reply in replies:
        reply.content["kept"]["x"].append(2)
    (reply,) = grid.send_and_receive([Message(RecordDict(), grid.get_node_ids()[0], "query")])
    assert reply.content["kept"] == {"x": [1]}


def test_a_cohort_that_is_declined_is_answered_one_by_one() -> None:
    grid = InlineGrid(app, 2, answer_cohort=lambda messages, contexts: None)
    assert [r.content["metrics"]["calls"] for r in send(grid, "train")] == [1, 1]


def test_a_cohort_that_fails_is_answered_one_by_one() -> None:
    def answer_cohort(messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
        for context in contexts:
            context.state["calls"] = ConfigRecord({"count": 7, "seen": []})
        raise ArithmeticError("not all of one size")

    grid = InlineGrid(app, 2, answer_cohort=answer_cohort)
    assert [r.content["metrics"]["calls"] for r in send(grid, "train")] == [1, 1]
    assert all(reply.error.code == 2 for reply in send(grid, "train", fail=True))
