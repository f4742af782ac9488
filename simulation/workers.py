"""A Flower `Grid` whose clients run in several processes of this machine, this one among them.

Each has an `InlineGrid`; one exchange is one call to each, with the model in memory they share.
docs/decisions/workers.md says why not Ray or joblib.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from logging import WARNING
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Self

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from server.errors import RunAborted
from simulation.inline import InlineGrid
from simulation.local_grid import LocalGrid, client_nodes
from simulation.shared_memory import SharedMemory, dump, load

__all__ = ["WorkerGrid"]

_Answered = tuple[list[Message], set[int]]


class WorkerGrid(LocalGrid):
    """Runs clients in this process and in others; the replies are those of one `InlineGrid`.

    A client that keeps state between messages is always answered by the process that holds it. The
    others go to the one that has their data in memory, as far as that leaves all equal work. A
    process that dies makes its clients' messages error replies with code 8; what those clients kept
    is lost, and the others take them over. A context manager: its end ends the other processes.

    Parameters
    ----------
    make : callable
        Makes the `InlineGrid` of a process; sent to the others pickled. Its node ids are the
        default ones.
    num_clients : int
        How many clients there are, at least 1.
    workers : int
        How many processes, this one included, at least 1. The others start at once; the first
        messages wait for them.

    Raises
    ------
    ValueError
        If there is no client or no worker.
    RunAborted
        If processes cannot be started.
    """

    def __init__(self, make: Callable[[], InlineGrid], num_clients: int, *, workers: int) -> None:
        """Start the other processes."""
        if workers < 1:
            raise ValueError(f"workers = {workers}: must be at least 1")
        if sys.platform != "linux":
            raise RunAborted(f"workers = {workers}: worker processes need Linux")
        nodes = client_nodes(num_clients, None)
        super().__init__(nodes)
        self._partitions = {node: partition for partition, node in enumerate(nodes)}
        self._last: dict[int, _Worker | InlineGrid] = {}  # who answered a client last
        self._bound: set[int] = set()  # clients that keep state there
        self._alive: list[_Worker] = []
        self._sent = SharedMemory()
        try:
            for _ in range(workers - 1):
                self._alive.append(_Worker.start(make, self._sent))
            self._here = make()
        except OSError as error:
            self.close()
            raise RunAborted(f"workers = {workers}: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        """Return the grid."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the other processes."""
        self.close()

    def close(self) -> None:
        """End the other processes, whatever they do."""
        for worker in self._alive:
            worker.end()
        self._alive.clear()
        self._sent.close()

    def answer(self, messages: Sequence[Message]) -> list[Message]:
        """Have all processes answer at once."""
        self._sent.clear()
        shares = self._shares(messages)
        away = {place: share for place, share in shares.items() if isinstance(place, _Worker)}
        # All written before any is sent: a worker woken early takes the CPU from this process.
        requests = {worker: dump(share, self._sent) for worker, share in away.items()}
        busy = {worker for worker, request in requests.items() if worker.ask(request)}
        own = shares.get(self._here, [])
        replies = self._remember(self._here, own, _answer(self._here, own))
        for worker, share in away.items():
            answered = worker.replies() if worker in busy else None
            if answered is None:
                replies.extend(self._lost(worker, share))
            else:
                replies.extend(self._remember(worker, share, answered))
        order = {message.metadata.message_id: i for i, message in enumerate(messages)}
        return sorted(replies, key=lambda reply: order[reply.metadata.reply_to_message_id])

    def _remember(
        self, place: _Worker | InlineGrid, share: Sequence[Message], answered: _Answered
    ) -> list[Message]:
        """Note who answered, and who keeps state there; return the replies."""
        replies, bound = answered
        nodes = [message.metadata.dst_node_id for message in share]
        self._last.update(dict.fromkeys(nodes, place))
        self._bound = self._bound.difference(nodes) | bound
        return replies

    def _shares(self, messages: Sequence[Message]) -> dict[_Worker | InlineGrid, list[Message]]:
        """Return each process's messages, in order; those without any are left out."""
        nodes = dict.fromkeys(message.metadata.dst_node_id for message in messages)
        # This process last: it has the server's work too.
        loads: dict[_Worker | InlineGrid, int] = dict.fromkeys([*self._alive, self._here], 0)
        fair = -(-len(nodes) // len(loads))
        chosen: dict[int, _Worker | InlineGrid] = {}
        # Those that cannot be moved first.
        for node in sorted(nodes, key=lambda node: node not in self._bound):
            place = self._last.get(node)
            if place is None or (node not in self._bound and loads[place] >= fair):
                place = min(loads, key=loads.__getitem__)
            chosen[node] = place
            loads[place] += 1
        shares: dict[_Worker | InlineGrid, list[Message]] = {}
        for message in messages:
            shares.setdefault(chosen[message.metadata.dst_node_id], []).append(message)
        return shares

    def _lost(self, worker: _Worker, share: Sequence[Message]) -> list[Message]:
        """Give a dead worker up; return error replies to its messages."""
        code = worker.end()
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        self._alive.remove(worker)
        self._last = {node: last for node, last in self._last.items() if last is not worker}
        self._bound &= self._last.keys()
        log(WARNING, "a worker process ended (%s); %d go on", how, len(self._alive))
        return [
            Message(
                Error(
                    code=ErrorCode.CLIENT_APP_CRASHED,
                    reason=f"client {self._partitions[message.metadata.dst_node_id]}: "
                    f"its worker process ended ({how})",
                ),
                reply_to=message,
            )
            for message in share
        ]


@dataclass(eq=False)
class _Worker:
    """A worker process as its parent sees it."""

    process: BaseProcess
    connection: Connection
    received: SharedMemory
    ready: bool = field(default=False)

    @classmethod
    def start(cls, make: Callable[[], InlineGrid], sent: SharedMemory) -> _Worker:
        # A fork would copy torch's threads in the middle of whatever they do.
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        received = SharedMemory()
        process = context.Process(
            target=_serve, args=(there, sent, received, make), name="muster-worker", daemon=True
        )
        with _without_interrupts():
            process.start()
        there.close()  # so that a worker's end is the end of the connection
        return cls(process, here, received)

    def ask(self, request: bytes) -> bool:
        """Send dumped messages; return whether the worker could take them.

        Raises
        ------
        RunAborted
            If the worker did not get as far as taking messages.
        """
        try:
            if not self.ready:
                self._wait()
            self.connection.send_bytes(request)
        except (EOFError, OSError):
            return False
        return True

    def replies(self) -> _Answered | None:
        """Return what `_answer` returned there; None if the worker died."""
        try:
            data = self.connection.recv_bytes()
        except (EOFError, OSError):
            return None
        answered: _Answered = load(data, self.received)
        return answered

    def end(self) -> int | None:
        """End the process if it runs; return its exit code."""
        self.connection.close()
        self.process.join(timeout=0.1)  # one that is dying has an exit code of its own
        self.process.kill()  # it has nothing to put in order
        self.process.join()
        code = self.process.exitcode
        self.process.close()
        self.received.close()
        return code

    def _wait(self) -> None:
        try:
            reason = self.connection.recv()
        except EOFError:
            reason = "it ended before it began"
        if reason is not None:
            raise RunAborted(f"a worker process could not start: {reason}")
        self.ready = True


def _serve(
    connection: Connection,
    received: SharedMemory,
    sent: SharedMemory,
    make: Callable[[], InlineGrid],
) -> None:
    """Answer messages until the parent closes the connection or ends."""
    logging.getLogger("flwr").setLevel(WARNING)
    with suppress(EOFError, OSError):
        try:
            grid = make()
        except Exception as error:
            connection.send(f"{type(error).__name__}: {error}")
            return
        connection.send(None)
        while True:
            messages: list[Message] = load(connection.recv_bytes(), received)
            answered = _answer(grid, messages)
            sent.clear()
            connection.send_bytes(dump(answered, sent))


def _answer(grid: InlineGrid, messages: Sequence[Message]) -> _Answered:
    """Return the replies and the nodes that keep state."""
    replies = grid.answer(messages)
    nodes = {message.metadata.dst_node_id for message in messages}
    return replies, {node for node in nodes if grid.keeps_state(node)}


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Have a process started here never see Ctrl-C: the parent does, and ends it."""
    resource_tracker.ensure_running()  # starting it would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
