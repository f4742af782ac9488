from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field

import numpy as np
import pytest
from fakes import FakeClock, FakeGrid
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict

from strategies.exchange import Answers, Exchange

DEADLINE, GRACE, STARTUP = 20.0, 3.0, 100.0


class Bench:
    """An exchange, its clock and its Grid; `warm` has had its first reply already."""

    def __init__(
        self, delays: dict[int, float | None], *, warm: bool = True, **grid: object
    ) -> None:
        self.clock = FakeClock()
        self.exchange = Exchange(
            deadline=DEADLINE,
            grace=GRACE,
            startup=STARTUP,
            clock=self.clock,
            sleep=self.clock.sleep,
        )
        if warm:
            self.grid = FakeGrid(self.clock, {99: 0.0})
            self.send([99], quorum=1)
        self.grid = FakeGrid(self.clock, delays, **grid)  # type: ignore[arg-type]
        self.clock.naps.clear()

    def send(self, nodes: list[int], *, quorum: int, server_round: int = 1) -> Answers:
        messages = [
            self.exchange.message(RecordDict(), node, "train", server_round) for node in nodes
        ]
        self.began = self.clock.now
        return self.exchange.send(self.grid, messages, quorum=quorum)

    @property
    def took(self) -> float:
        return self.clock.now - self.began


def test_all_replies_come_back_under_their_nodes_with_their_times() -> None:
    bench = Bench({1: 0.0, 2: 1.0, 3: 2.0})
    answers = bench.send([3, 1, 2], quorum=3)
    assert answers.failed == {}
    assert {n: r.content["metrics"]["node"] for n, r in answers.replies.items()} == {
        1: 1,
        2: 2,
        3: 3,
    }
    # A reply is noticed at the first poll after it came; pauses are at most 0.25 s.
    for node, delay in ((1, 0.0), (2, 1.0), (3, 2.0)):
        assert delay <= answers.seconds[node] <= delay + 0.25
    assert bench.took <= 2.25


@dataclass
class LeakyGrid(FakeGrid):
    """Its pull leaves a cycle of references behind, as Flower's does."""

    reply_bytes: int = 0
    left: list[weakref.ref[FakeClock]] = field(default_factory=list)

    def _reply(self, message: Message) -> Message:
        cycle = FakeClock()
        cycle.itself = cycle  # type: ignore[attr-defined]
        self.left.append(weakref.ref(cycle))
        reply = super()._reply(message)
        reply.content["arrays"] = ArrayRecord({"a": Array(np.zeros(self.reply_bytes, np.uint8))})
        return reply


@pytest.mark.parametrize(
    ("seconds", "size", "collected"), [(1.0, 2**25, True), (1.0, 100, False), (0.0, 2**25, False)]
)
def test_what_a_pull_of_large_replies_leaves_is_collected(
    seconds: float, size: int, collected: bool
) -> None:
    bench = Bench({})
    grid = bench.grid = LeakyGrid(bench.clock, {1: 0.0}, poll_seconds=seconds, reply_bytes=size)
    gc.collect()
    gc.disable()
    try:
        bench.send([1], quorum=1)
        assert (grid.left[0]() is None) is collected
    finally:
        gc.enable()


def test_no_message_is_no_exchange() -> None:
    bench = Bench({1: 0.0})
    assert bench.send([], quorum=1) == Answers()
    assert bench.grid.pushes == []
    assert bench.clock.naps == []


def test_the_deadline_ends_the_wait_and_is_each_messages_time_to_live() -> None:
    bench = Bench({1: 1.0, 2: None, 3: DEADLINE + 1})
    answers = bench.send([1, 2, 3], quorum=3)
    assert set(answers.replies) == {1}
    assert answers.failed.keys() == {2, 3}
    assert all(reason.startswith("no reply within 20.") for reason in answers.failed.values())
    assert DEADLINE <= bench.took <= DEADLINE + 0.25
    assert [message.metadata.ttl for message in bench.grid.messages] == [DEADLINE] * 3


def test_the_round_is_the_messages_group() -> None:
    bench = Bench({1: 0.0})
    bench.send([1], quorum=1, server_round=12)
    assert bench.grid.messages[0].metadata.group_id == "12"


@pytest.mark.parametrize("delay", [1.0, 10.0])
def test_after_the_quorum_stragglers_get_the_grace(delay: float) -> None:
    bench = Bench({1: 0.0, 2: delay, 3: None})
    answers = bench.send([1, 2, 3], quorum=2)
    assert set(answers.replies) == {1, 2}
    assert delay + GRACE <= bench.took <= delay + GRACE + 0.5


def test_a_reply_within_the_grace_starts_it_again() -> None:
    bench = Bench({1: 0.0, 2: 2.5, 3: 5.0, 4: 9.0})
    answers = bench.send([1, 2, 3, 4], quorum=1)
    assert set(answers.replies) == {1, 2, 3}
    assert 5.0 + GRACE <= bench.took <= 5.5 + GRACE


def test_the_grace_does_not_outlast_the_deadline() -> None:
    bench = Bench({1: DEADLINE - 1, 2: DEADLINE + 1})
    answers = bench.send([1, 2], quorum=1)
    assert set(answers.replies) == {1}
    assert bench.took <= DEADLINE + 0.25


def test_errors_do_not_count_towards_the_quorum() -> None:
    bench = Bench({1: 0.0, 2: 0.0, 3: 8.0}, errors={1: Error(2, "a"), 2: Error(2, "b")})
    answers = bench.send([1, 2, 3], quorum=1)
    assert set(answers.replies) == {3}


def test_the_first_exchange_does_not_count_the_backends_start() -> None:
    bench = Bench({1: 60.0, 2: 60.0 + DEADLINE - 1, 3: None}, warm=False)
    answers = bench.send([1, 2, 3], quorum=3)
    assert set(answers.replies) == {1, 2}
    assert 60.0 + DEADLINE <= bench.took <= 60.75 + DEADLINE
    assert bench.grid.messages[0].metadata.ttl == STARTUP + DEADLINE
    answers = bench.send([3], quorum=1)
    assert DEADLINE <= bench.took <= DEADLINE + 0.25
    assert bench.grid.messages[-1].metadata.ttl == DEADLINE


def test_a_backend_that_never_starts_is_given_up() -> None:
    bench = Bench({1: None}, warm=False)
    answers = bench.send([1], quorum=1)
    assert answers.replies == {}
    assert STARTUP + DEADLINE <= bench.took <= STARTUP + DEADLINE + 0.25


def test_an_error_is_put_down_to_the_node_it_happened_on() -> None:
    errors = {1: Error(2, "ValueError:\n  no luck"), 3: Error(5, "Node unavailable"), 4: Error(8)}
    bench = Bench(dict.fromkeys((1, 2, 3, 4), 0.0), errors=errors, by_superlink={3, 4})
    answers = bench.send([1, 2, 3, 4], quorum=4)
    assert set(answers.replies) == {2}
    assert answers.failed == {
        1: "error 2: ValueError: no luck",
        3: "error 5: Node unavailable",
        4: "error 8: no reason given",
    }
    assert answers.seconds.keys() == {1, 2, 3, 4}


def test_a_long_reason_is_cut() -> None:
    bench = Bench({1: 0.0}, errors={1: Error(2, "x" * 5000)})
    assert len(bench.send([1], quorum=1).failed[1]) < 400


@pytest.mark.parametrize("asks_who_is_busy", [True, False])
def test_a_late_reply_is_never_used_for_another_round(asks_who_is_busy: bool) -> None:
    bench = Bench({1: 0.0, 2: 10.0})
    first = bench.send([1, 2], quorum=1)
    assert set(first.failed) == {2}
    late = bench.grid.messages[1].metadata.message_id
    bench.grid.delays[2] = 0.0
    bench.clock.now += 10.0
    if asks_who_is_busy:
        assert bench.exchange.busy(bench.grid) == set()
    second = bench.send([1, 2], quorum=2, server_round=2)
    assert second.failed == {}
    for reply in second.replies.values():
        assert reply.metadata.reply_to_message_id != late
        assert reply.metadata.group_id == "2"


def test_a_node_is_busy_until_its_message_has_expired() -> None:
    bench = Bench({1: 0.0, 2: None, 3: None})
    bench.send([1, 2, 3], quorum=1)  # ends with the grace, well before the deadline
    began = bench.began
    assert bench.exchange.busy(bench.grid) == {2, 3}
    bench.clock.now = began + DEADLINE - 0.1
    assert bench.exchange.busy(bench.grid) == {2, 3}
    bench.clock.now = began + DEADLINE + 0.1
    assert bench.exchange.busy(bench.grid) == set()


def test_a_late_reply_frees_a_node_before_its_message_expires() -> None:
    bench = Bench({1: 0.0, 2: 10.0})
    bench.send([1, 2], quorum=1)
    assert bench.exchange.busy(bench.grid) == {2}
    bench.clock.now = bench.began + 10.5
    assert bench.exchange.busy(bench.grid) == set()


def test_a_refused_message_fails_its_node_alone() -> None:
    bench = Bench({1: 0.0, 2: 0.0, 3: 0.0}, refused={2})
    answers = bench.send([1, 2, 3], quorum=3)
    assert set(answers.replies) == {1, 3}
    assert answers.failed == {2: "the message could not be sent"}
    assert bench.exchange.busy(bench.grid) == set()


def test_a_payload_too_large_for_one_push_goes_message_by_message() -> None:
    bench = Bench({1: 0.0, 2: 0.0, 3: 0.0}, largest_push=1)
    answers = bench.send([1, 2, 3], quorum=3)
    assert set(answers.replies) == {1, 2, 3}
    assert bench.grid.pushes == [[1, 2, 3], [1], [2], [3]]


def test_a_payload_too_large_even_alone_fails_at_once() -> None:
    bench = Bench({1: 0.0, 2: 0.0}, largest_push=0)
    answers = bench.send([1, 2], quorum=2)
    assert answers.failed == dict.fromkeys((1, 2), "the message could not be sent")
    assert bench.took == 0.0


def test_only_what_is_missing_is_asked_for() -> None:
    bench = Bench({1: 0.0, 2: 1.0})
    bench.send([1, 2], quorum=2)
    assert len(bench.grid.polls[0]) == 2
    assert all(len(asked) == 1 for asked in bench.grid.polls[1:])


def test_pauses_are_short_at_first_and_grow_to_a_limit() -> None:
    bench = Bench({1: 10.0})
    bench.send([1], quorum=1)
    naps = bench.clock.naps
    assert naps[0] < 0.005
    assert naps == sorted(naps)
    assert naps[-1] == 0.25


def test_costly_polls_are_rare() -> None:
    """A backend that scans every message at each poll must not be kept busy by polling alone."""
    bench = Bench({1: 2.0}, poll_seconds=0.02)
    bench.send([1], quorum=1)
    polling = 0.02 * len(bench.grid.polls)
    assert polling < 0.25 * bench.took


def test_each_message_has_content_of_its_own_choice() -> None:
    exchange = Bench({1: 0.0}).exchange
    content = RecordDict()
    message = exchange.message(content, 1, "train.sketch", 4)
    assert isinstance(message, Message)
    assert message.content is content
    assert message.metadata.message_type == "train.sketch"
    assert message.metadata.dst_node_id == 1


def test_a_quorum_out_of_reach_ends_by_the_grace() -> None:
    bench = Bench({1: 0.0, 2: 0.0, 3: None}, errors={1: Error(2, "a"), 2: Error(2, "b")})
    answers = bench.send([1, 2, 3], quorum=2)
    assert not answers.replies
    assert GRACE <= bench.took <= GRACE + 0.5
