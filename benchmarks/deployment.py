"""A deployment on loopback: the time of a two-phase round, and the memory a large model takes.

python benchmarks/deployment.py            both
python benchmarks/deployment.py round      4 clients on digits: a two-phase round against two of
                                           Flower's `send_and_receive` phases, taking turns in one
                                           run: phases that train all clients (two rounds of
                                           FedAvg), and phases of the round's own messages
python benchmarks/deployment.py memory     a model of 60 MB, 4 clients, ten rounds: peak memory
                                           of the ServerApp
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from loopback import Deployment  # noqa: E402

APP = Path(__file__).parent / "deployment_app"
CLIENTS = 4
TURNS = 5
RATIO_BOUND = 0.75
MEMORY_BOUND_MB = 1000
ROUNDS = 10


def start(folder: Path) -> Deployment:
    deployment = Deployment(folder)
    deployment.start_server()
    for partition in range(CLIENTS):
        deployment.start_client(
            str(partition), f"partition-id={partition} num-partitions={CLIENTS}"
        )
    return deployment


def time_rounds(folder: Path) -> None:
    deployment = start(folder)
    try:
        out = folder / "times.json"
        run_id = deployment.submit(APP, {"out": str(out), "turns": TURNS, "clients": CLIENTS})
        status = deployment.wait(run_id, 3000)
        assert status == "finished:completed", deployment.run_log(run_id)
    finally:
        deployment.close()
    times = json.loads(out.read_text())
    ours = statistics.median(turn["muster"] for turn in times)
    print(f"{'against':>20} {'Flower':>8} {'Muster':>8} {'ratio':>6} {'bound':>6}")
    for name in ("two phases", "same messages"):
        flower = statistics.median(turn[name] for turn in times)
        ratio = statistics.median(turn["muster"] / turn[name] for turn in times)
        print(
            f"{name:>20} {flower:6.2f} s {ours:6.2f} s {ratio:6.2f} {RATIO_BOUND:6.2f}"
            f"{'' if ratio <= RATIO_BOUND else '  MISSED'}"
        )


def measure_memory(folder: Path) -> None:
    deployment = start(folder)
    peaks: dict[str, int] = {}
    done = threading.Event()
    watcher = threading.Thread(target=watch, args=(deployment, peaks, done))
    watcher.start()
    try:
        out = folder / "run"
        config = {
            "large": True,
            "out": str(out),
            "model": "deployment_app:large_model",
            "clients": CLIENTS,
            "rounds": ROUNDS,
        }
        started = time.perf_counter()
        run_id = deployment.submit(APP, config)
        status = deployment.wait(run_id, 3000)
        seconds = time.perf_counter() - started
        assert status == "finished:completed", deployment.run_log(run_id)
    finally:
        done.set()
        watcher.join()
        deployment.close()
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert len(lines) == ROUNDS
    assert all(len(line["replied"]) == 2 for line in lines)
    down = max(line["bytes-down"]["sketch"] for line in lines) / CLIENTS
    peak = peaks["flwr-serverapp"] / 1e6
    print(f"{ROUNDS} rounds of a {down / 1e6:.0f} MB model in {seconds:.0f} s")
    for name, size in sorted(peaks.items()):
        print(f"{name:>20} peak {size / 1e6:6.0f} MB")
    if peak > MEMORY_BOUND_MB:
        print(f"{'':>20} MISSED: at most {MEMORY_BOUND_MB} MB for the ServerApp")


def watch(deployment: Deployment, peaks: dict[str, int], done: threading.Event) -> None:
    """Note the highest resident size of the apps' processes, as the kernel counts it."""
    while not done.wait(0.2):
        for name in ("superexec", *(f"{i}-superexec" for i in range(CLIENTS))):
            try:
                children = deployment.children(name)
            except (KeyError, psutil.Error):
                continue
            for process in children:
                try:
                    status = Path(f"/proc/{process.pid}/status").read_text()
                except OSError:
                    continue
                size = [line for line in status.splitlines() if line.startswith("VmHWM")]
                if size:
                    kind = "flwr-serverapp" if name == "superexec" else "flwr-clientapp"
                    peaks[kind] = max(peaks.get(kind, 0), 1024 * int(size[0].split()[1]))


def main() -> None:
    for name, benchmark in {"round": time_rounds, "memory": measure_memory}.items():
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            with tempfile.TemporaryDirectory() as folder:
                benchmark(Path(folder))


if __name__ == "__main__":
    main()
