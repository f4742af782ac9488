import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from worker_app import CLIENTS, exit_instead, make_grid, make_nothing

from server.errors import RunAborted
from simulation.local_grid import LocalGrid
from simulation.workers import WorkerGrid
from strategies.arrays import pack


@pytest.fixture(scope="module")
def shared() -> Iterator[WorkerGrid]:
    with WorkerGrid(make_grid, CLIENTS, workers=3) as grid:
        yield grid


@pytest.fixture
def fresh() -> Iterator[WorkerGrid]:
    with WorkerGrid(make_grid, CLIENTS, workers=2) as grid:
        yield grid


def send(
    grid: LocalGrid,
    partitions: list[int],
    *,
    kind: str = "train",
    x: float = 0.0,
    raises: int = -1,
    exits: int = -1,
) -> list[Message]:
    content = {
        "arrays": pack({"x": np.full(1000, x)}),
        "config": ConfigRecord({"raises": raises, "exits": exits}),
    }
    nodes = grid.get_node_ids()
    messages = [Message(RecordDict(dict(content)), nodes[p], kind) for p in partitions]
    return grid.send_and_receive(messages)


def outcome(replies: list[Message]) -> list[object]:
    return [
        (
            reply.metadata.src_node_id,
            reply.metadata.message_id,
            reply.metadata.reply_to_message_id,
            reply.error.reason if reply.has_error() else reply.content,
        )
        for reply in replies
    ]


def test_replies_are_those_of_one_process(shared: WorkerGrid) -> None:
    inline = make_grid()
    exchanges = [[3, 0, 5], [5], list(range(CLIENTS)), [6, 2], [], [0, 0, 1]]
    seen = []
    for number, partitions in enumerate(exchanges):
        replies = send(shared, partitions, x=number, raises=2)
        expected = outcome(send(inline, partitions, x=number, raises=2))
        assert outcome(replies) == expected
        seen.append((replies, expected))
    for replies, expected in seen:  # later exchanges have not written over earlier replies
        assert outcome(replies) == expected
    assert send(shared, [1, 2], kind="evaluate") == []


def test_work_is_shared_equally_where_nothing_is_kept() -> None:
    with WorkerGrid(make_grid, CLIENTS, workers=2) as grid:
        pids: dict[int, set[int]] = {}
        for partitions in ([0, 1, 2, 3], [4, 5, 6], [0, 1, 4, 5], [6, 5, 4, 3, 2, 1, 0]):
            replies = send(grid, partitions, kind="query")
            where = [int(reply.content["pid"]["pid"]) for reply in replies]
            spread = Counter(where)
            assert os.getpid() in spread
            assert len(spread) == 2
            assert max(spread.values()) - min(spread.values()) <= 1
            for partition, pid in zip(partitions, where, strict=True):
                pids.setdefault(partition, set()).add(pid)
        # With state a client stays where it is, however uneven that becomes.
        send(grid, list(range(CLIENTS)))
        homes = [int(r.content["pid"]["pid"]) for r in send(grid, list(range(7)), kind="query")]
        mine = [p for p in range(CLIENTS) if homes[p] == homes[0]]
        again = send(grid, mine, kind="query")
        assert {int(reply.content["pid"]["pid"]) for reply in again} == {homes[0]}


def places(grid: WorkerGrid) -> list[int]:
    replies = send(grid, list(range(CLIENTS)), kind="query")
    return [int(reply.content["pid"]["pid"]) for reply in replies]


def test_a_dead_worker_costs_its_own_messages_and_no_more(fresh: WorkerGrid) -> None:
    everyone = list(range(CLIENTS))
    assert not any(reply.has_error() for reply in send(fresh, everyone))
    away = [p for p, pid in enumerate(places(fresh)) if pid != os.getpid()]
    assert 0 < len(away) < CLIENTS
    replies = send(fresh, everyone, exits=away[0])
    assert [reply.metadata.src_node_id for reply in replies] == fresh.get_node_ids()
    lost = [p for p in everyone if replies[p].has_error()]
    assert lost == away
    for partition in lost:
        assert replies[partition].error.code == 8
        reason = f"client {partition}: its worker process ended (exit code 3)"
        assert replies[partition].error.reason == reason
    replies = send(fresh, everyone)
    calls = [reply.content["metrics"]["calls"] for reply in replies]
    assert calls == [1 if partition in lost else 3 for partition in everyone]
    assert set(places(fresh)) == {os.getpid()}  # this process goes on alone


def test_a_worker_killed_between_exchanges_is_noticed(fresh: WorkerGrid) -> None:
    send(fresh, [0, 1])
    victim = fresh._alive[0].process
    victim.kill()
    victim.join()
    replies = send(fresh, list(range(CLIENTS)))
    reasons = [str(reply.error.reason) for reply in replies if reply.has_error()]
    assert reasons
    assert all("its worker process ended (signal 9)" in reason for reason in reasons)
    assert not any(reply.has_error() for reply in send(fresh, list(range(CLIENTS))))


@pytest.mark.parametrize(
    ("make", "reason"),
    [(make_nothing, "ValueError: no data"), (exit_instead, "it ended before it began")],
)
def test_workers_that_cannot_start_are_told_in_one_line(make, reason: str) -> None:  # type: ignore[no-untyped-def]
    with (
        WorkerGrid(make, CLIENTS, workers=2) as grid,
        pytest.raises(RunAborted, match=f"^a worker process could not start: {reason}$"),
    ):
        send(grid, [0])


def test_the_end_leaves_no_process_and_no_memory() -> None:
    before = set(os.listdir("/proc/self/fd"))
    processes = set(multiprocessing.active_children())
    with WorkerGrid(make_grid, CLIENTS, workers=2) as grid:
        send(grid, [0, 1, 2])
        assert len(set(multiprocessing.active_children()) - processes) == 1
    assert set(multiprocessing.active_children()) == processes
    assert len(os.listdir("/proc/self/fd")) <= len(before) + 1  # multiprocessing's own tracker


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="workers = 0"):
        WorkerGrid(make_grid, CLIENTS, workers=0)
    with pytest.raises(ValueError, match="num_clients = 0"):
        WorkerGrid(make_grid, 0, workers=1)


@pytest.mark.slow
@pytest.mark.parametrize("rounds_before", [0, 1])
def test_an_interrupt_ends_all_processes_in_one_line(tmp_path: Path, rounds_before: int) -> None:
    """Ctrl-C reaches every process of a terminal's group, also while workers start."""
    command = "import sys; from simulation.cli import app; sys.argv[0] = 'muster'; app()"
    options = ["run", "--workers", "2", "-c", 'model="cnn" num-server-rounds=10000 out="r"']
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", command, *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    begun = "round" if rounds_before else "results go to"
    while not process.stdout.readline().startswith(begun):
        assert process.poll() is None
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.splitlines()[-1] == "interrupted; what was finished is kept"
    assert err == ""
    deadline = time.monotonic() + 10  # the tracker of `multiprocessing` ends by itself
    while any(child.is_running() for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.1)
