"""A Flower `Grid` whose clients run in worker processes of this machine.

Each worker is an `InlineGrid` in a process of its own; one exchange is one call to each, with the
model in memory they share. docs/decisions/workers.md says why not Ray or joblib.
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


class WorkerGrid(LocalGrid):
    """Runs clients in worker processes; the replies are those of one `InlineGrid`.

    A client that keeps state between messages is always answered by the worker that holds it. The
    others go to the worker that has their data in memory, as far as that leaves all equal work. A
    worker that dies makes its clients' messages error replies with code 8; what those clients kept
    is lost, and the other workers take them over. A context manager: its end ends the workers.

    Parameters
    ----------
    make : callable
        Makes the `InlineGrid` of a worker; sent to it pickled. Its node ids are the default ones.
    num_clients : int
        How many clients there are, at least 1.
    workers : int
        How many processes, at least 1. They start at once; the first messages wait for them.

    Raises
    ------
    ValueError
        If there is no client or no worker.
    RunAborted
        If workers cannot be started. `answer`: also if the last worker died.
    """

    def __init__(self, make: Callable[[], InlineGrid], num_clients: int, *, workers: int) -> None:
        """Start the workers."""
        if workers < 1:
            raise ValueError(f"workers = {workers}: must be at least 1")
        if sys.platform != "linux":
            raise RunAborted(f"workers = {workers}: worker processes need Linux")
        nodes = client_nodes(num_clients, None)
        super().__init__(nodes)
        self._partitions = {node: partition for partition, node in enumerate(nodes)}
        self._last: dict[int, _Worker] = {}  # who answered a client last
        self._bound: set[int] = set()  # clients that keep state there
        self._alive: list[_Worker] = []
        self._sent = SharedMemory()
        try:
            for _ in range(workers):
                self._alive.append(_Worker.start(make, self._sent))
        except OSError as error:
            self.close()
            raise RunAborted(f"workers = {workers}: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        """Return the grid."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers."""
        self.close()

    def close(self) -> None:
        """End the workers, whatever they do."""
        for worker in self._alive:
            worker.end()
        self._alive.clear()
        self._sent.close()

    def answer(self, messages: Sequence[Message]) -> list[Message]:
        """Have the workers answer, all at once."""
        self._sent.clear()
        shares = self._shares(messages)
        # All written before any is sent: a worker woken early takes the CPU from this process.
        requests = {worker: dump(share, self._sent) for worker, share in shares.items()}
        busy = {worker for worker, request in requests.items() if worker.ask(request)}
        replies: list[Message] = []
        for worker, share in shares.items():
            answered = worker.replies() if worker in busy else None
            if answered is None:
                replies.extend(self._lost(worker, share))
                continue
            own, bound = answered
            replies.extend(own)
            nodes = [message.metadata.dst_node_id for message in share]
            self._last.update(dict.fromkeys(nodes, worker))
            self._bound = self._bound.difference(nodes) | bound
        if not self._alive:
            raise RunAborted("the last worker process ended; the lines above say how")
        order = {message.metadata.message_id: i for i, message in enumerate(messages)}
        return sorted(replies, key=lambda reply: order[reply.metadata.reply_to_message_id])

    def _shares(self, messages: Sequence[Message]) -> dict[_Worker, list[Message]]:
        """Return each worker's messages, in order; workers without any are left out."""
        nodes = dict.fromkeys(message.metadata.dst_node_id for message in messages)
        fair = -(-len(nodes) // len(self._alive))
        loads = dict.fromkeys(self._alive, 0)
        chosen: dict[int, _Worker] = {}
        # Those that cannot be moved first.
        for node in sorted(nodes, key=lambda node: node not in self._bound):
            worker = self._last.get(node)
            if worker is None or (node not in self._bound and loads[worker] >= fair):
                worker = min(loads, key=loads.__getitem__)
            chosen[node] = worker
            loads[worker] += 1
        shares: dict[_Worker, list[Message]] = {}
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

    def replies(self) -> tuple[list[Message], set[int]] | None:
        """Return the replies and the nodes that keep state; None if the worker died."""
        try:
            data = self.connection.recv_bytes()
        except (EOFError, OSError):
            return None
        answered: tuple[list[Message], set[int]] = load(data, self.received)
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
            replies = grid.answer(messages)
            nodes = {message.metadata.dst_node_id for message in messages}
            bound = {node for node in nodes if grid.keeps_state(node)}
            sent.clear()
            connection.send_bytes(dump((replies, bound), sent))


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Have a process started here never see Ctrl-C: the parent does, and ends it."""
    resource_tracker.ensure_running()  # starting it would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
