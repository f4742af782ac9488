"""Sending messages and waiting for the replies, with deadlines that hold.

Flower's `send_and_receive` polls at a fixed pace (0.1 s in a simulation, 3 s in a deployment) and
knows one time limit for all. Here the pace follows the cost of a poll, each message also carries
the limit as its time-to-live, stragglers get a grace period once enough have answered, and every
failure is put down to the node it happened on.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from logging import DEBUG

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from strategies.messages import count_bytes

__all__ = ["Answers", "Exchange"]

# A poll costs the backend time (it scans every message), so pauses are a multiple of what the last
# poll took: with 10 messages about 2 ms, with 100 on Ray tens of milliseconds.
_SHORTEST_PAUSE = 0.002
_LONGEST_PAUSE = 0.25
_SLOW_PULL = 0.1  # seconds: a full collection takes about as long
_LARGE_PULL = 2**24  # bytes
_PAUSE_PER_POLL = 4.0
_SLOWER_WHEN_IDLE = 1.2


@dataclass
class Answers:
    """What came back of one exchange, by node id.

    Attributes
    ----------
    replies : dict of int to Message
        Replies with content.
    failed : dict of int to str
        Why there is none, for every other node written to.
    seconds : dict of int to float
        From sending to the reply's arrival.
    """

    replies: dict[int, Message] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)


class Exchange:
    """Sends messages over a Grid and collects the replies.

    Parameters
    ----------
    deadline : float
        Seconds a reply may take. Also the messages' time-to-live, so that a message that waits in a
        queue beyond it is never worked on.
    grace : float
        Once the quorum has answered, the exchange ends when no reply has come for this many
        seconds.
    startup : float
        Seconds to wait for the very first reply of all, on top of the deadline: the simulation
        backend starts its workers only when the first message arrives.
    clock, sleep : callable
        Replaced in tests.
    """

    def __init__(
        self,
        *,
        deadline: float,
        grace: float,
        startup: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.deadline = deadline
        self.grace = grace
        self.startup = startup
        self._clock = clock
        self._sleep = sleep
        self._started = False
        self._outstanding: dict[int, tuple[str, float]] = {}

    def message(self, content: RecordDict, node_id: int, kind: str, server_round: int) -> Message:
        """Return a message whose time-to-live is the deadline."""
        ttl = self.deadline + (0.0 if self._started else self.startup)
        return Message(content, node_id, kind, ttl=ttl, group_id=str(server_round))

    def busy(self, grid: Grid) -> set[int]:
        """Return the nodes that may still be working on a message of an earlier exchange.

        Replies that have come in since are taken off the Grid and dropped: a late reply is never
        used for another round.
        """
        if self._outstanding:
            by_id = {message_id: node for node, (message_id, _) in self._outstanding.items()}
            for reply in grid.pull_messages(list(by_id)):
                self._outstanding.pop(by_id[reply.metadata.reply_to_message_id], None)
            now = self._clock()
            self._outstanding = {n: o for n, o in self._outstanding.items() if o[1] > now}
        return set(self._outstanding)

    def send(self, grid: Grid, messages: Sequence[Message], *, quorum: int) -> Answers:
        """Send messages, at most one per node, and wait for the replies.

        Parameters
        ----------
        grid : Grid
            Where to send them.
        messages : sequence of Message
            One per node.
        quorum : int
            Good replies after which stragglers get only the grace period.

        Returns
        -------
        Answers
            A reply or a reason for each node.
        """
        answers = Answers()
        nodes = {message.metadata.dst_node_id: message for message in messages}
        sent_at = self._clock()
        pending = self._push(grid, messages)
        for node in nodes.keys() - pending.values():
            answers.failed[node] = "the message could not be sent"

        last_reply = sent_at
        end = sent_at + self.deadline + (0.0 if self._started else self.startup)
        pause, wait_for_grace = _SHORTEST_PAUSE, False
        while pending:
            polled_at = self._clock()
            replies = list(grid.pull_messages(list(pending)))
            now = self._clock()
            if now - polled_at > _SLOW_PULL and _bytes(replies) > _LARGE_PULL:
                # Flower's pull leaves the bytes it received in a cycle of references, as large as
                # the replies; those of several rounds would wait for the collector.
                gc.collect()
            for reply in replies:
                # Errors made by the SuperLink carry its own id as the source.
                if reply.metadata.reply_to_message_id in pending:
                    node = pending.pop(reply.metadata.reply_to_message_id)
                    self._file(answers, node, reply, now - sent_at)
            if answers.replies and not self._started:
                self._started = True
                end = now + self.deadline
            if replies:
                last_reply = now
                good = len(answers.replies)
                # Also once the quorum is out of reach: waiting on would change nothing.
                wait_for_grace = good >= quorum or good + len(pending) < quorum
                pause = _SHORTEST_PAUSE
            else:
                pause *= _SLOWER_WHEN_IDLE
            if now >= end or (wait_for_grace and now >= last_reply + self.grace):
                break
            if pending:
                pause = max(pause, _PAUSE_PER_POLL * (now - polled_at))
                pause = min(pause, _LONGEST_PAUSE)
                self._sleep(pause)

        waited = self._clock() - sent_at
        for message_id, node in pending.items():
            answers.failed[node] = f"no reply within {waited:.1f} s"
            self._outstanding[node] = (message_id, sent_at + nodes[node].metadata.ttl)
        return answers

    @staticmethod
    def _push(grid: Grid, messages: Sequence[Message]) -> dict[str, int]:
        """Push the messages; return the accepted ones' ids with their nodes."""
        accepted = list(grid.push_messages(messages)) if messages else []
        if not accepted and len(messages) > 1:
            # Flower answers a payload that is too large with an empty list.
            log(DEBUG, "pushing %d messages one by one", len(messages))
            accepted = [i for message in messages for i in grid.push_messages([message])]
        ids = {str(message_id) for message_id in accepted if message_id}
        return {
            message.metadata.message_id: message.metadata.dst_node_id
            for message in messages
            if message.metadata.message_id in ids
        }

    @staticmethod
    def _file(answers: Answers, node: int, reply: Message, seconds: float) -> None:
        answers.seconds[node] = seconds
        if reply.has_error():
            reason = " ".join((reply.error.reason or "").split()) or "no reason given"
            answers.failed[node] = f"error {reply.error.code}: {reason[:300]}"
        else:
            answers.replies[node] = reply


def _bytes(replies: Sequence[Message]) -> int:
    return sum(count_bytes(reply.content) for reply in replies if reply.has_content())
