"""Rounds per second of the inline engine against other simulators, side by side.

Run with `make bench-engines` (about 8 minutes). Fashion-MNIST, 100 clients, one step of batch 16.
Each engine runs on one thread and is timed in seconds of CPU time, which other processes disturb
less than the wall clock. Where one of those compared is several processes, the inline engine with
two workers and Flower's Ray backend, all are timed by the wall clock: it takes two idle CPUs to
see what two workers can do. BlazeFL 2.0.3 and pfl 0.6.0 are installed into
environments of their own. Engines take turns; figures are medians of the repeats, and so are the
ratios, each of one turn.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from server.config import RunConfig
from simulation.engines import run_inline, run_ray
from tasks.data import load_dataset

HERE = Path(__file__).parent
REPEATS, SECONDS = 3, 3.0
# Model, clients a round, workers of the inline engine, bound on its speed over BlazeFL's.
JOBS = (
    ("softmax", 10, 1, 1.1),
    ("softmax", 18, 1, 1.3),
    ("cnn", 10, 1, 1.0),
    ("cnn", 10, 2, 1.5),
)
RAY_BOUND = 20.0
# What runs an engine: its packages and the Python versions they support, best first.
PEERS = {
    "blazefl": (("blazefl==2.0.3", "numpy", "tqdm"), ("3.12", "3.13")),
    "pfl": (("pfl[pytorch]==0.6.0",), ("3.11", "3.10", "3.12")),
}


def main() -> None:
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(name, None)
    if sys.argv[1:2] == ["inline"]:
        print(*inline(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
        return
    runners = {"plain": sys.executable}
    for engine in PEERS:
        try:
            runners[engine] = environment(engine)
        except RuntimeError as error:
            if engine == "blazefl":
                sys.exit(f"nothing to hold the bounds against: {error}")
            print(f"{engine} is left out: {error}")
    wall: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        dataset = load_dataset("fashion-mnist", "", seed=0)
        np.savez(data, x=dataset.x_train, y=dataset.y_train)
        print(f"rounds/s; load average {load()}")
        titles = f"{'plain':>6}  {'BlazeFL':>7}  {'pfl':>6}  {'inline':>6}"
        print(f"{'model':8} {'a round':>7} {'workers':>7}  {titles}  inline/BlazeFL  bound  load")
        for model, cohort, workers, bound in JOBS:
            clock = 0 if workers == 1 else 1  # CPU time, the wall clock
            speeds: dict[str, list[float]] = {engine: [] for engine in (*runners, "inline")}
            for _ in range(REPEATS):
                for engine, python in runners.items():
                    options = [engine, str(data), model, str(cohort), str(SECONDS)]
                    script = str(HERE / "engines_peer.py")
                    speeds[engine].append(measure([python, script, *options])[clock])
                options = ["inline", model, str(cohort), str(workers)]
                own = measure([sys.executable, __file__, *options])
                speeds["inline"].append(own[clock])
                if (model, cohort) == ("softmax", 10):
                    wall.append(own[1])
            median = {engine: statistics.median(values) for engine, values in speeds.items()}
            pairs = zip(speeds["inline"], speeds["blazefl"], strict=True)
            ratio = statistics.median(ours / theirs for ours, theirs in pairs)
            pfl = f"{median['pfl']:6.0f}" if "pfl" in median else "     -"
            print(
                f"{model:8} {cohort:7} {workers:7}  "
                f"{median['plain']:6.0f}  {median['blazefl']:7.0f}  {pfl}  "
                f"{median['inline']:6.0f}  {ratio:14.2f}  {bound:5.2f}  {load()}"
                f"{'' if ratio >= bound else '  MISSED'}",
                flush=True,
            )
    speed, own_speed = ray(), statistics.median(wall)
    missed = "" if own_speed >= RAY_BOUND * speed else "  MISSED"
    print(
        f"\nFlower's Ray backend, softmax, 10 a round, wall clock: {speed:.1f} rounds/s; inline "
        f"{own_speed:.0f}, {own_speed / speed:.0f} times as fast, bound {RAY_BOUND:.0f}{missed}; "
        f"load average {load()}"
    )


def load() -> str:
    """Return the load average of the last minute: beyond the number of CPUs, figures suffer."""
    return f"{os.getloadavg()[0]:.1f}"


def measure(command: list[str]) -> list[float]:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return [float(word) for word in done.stdout.splitlines()[-1].split()]


def settings(model: str, cohort: int, rounds: int, out: str) -> RunConfig:
    return RunConfig(
        strategy="uniform",
        dataset="fashion-mnist",
        model=model,
        partitioner="iid",
        clients_per_round=cohort,
        num_server_rounds=rounds,
        local_steps=1,
        batch_size=16,
        learning_rate=0.01,
        evaluate_every=rounds,
        checkpoint_every=0,
        out=out,
    )


def inline(model: str, cohort: int, workers: int) -> tuple[float, float]:
    """Return rounds per second of CPU time and of the wall clock, all but start and evaluation.

    CPU time is this process's own, without workers'.
    """
    rounds = 1200 if model == "softmax" else 120
    ends: list[tuple[float, float]] = []

    def tell(line: str) -> None:
        if line.startswith("round"):
            ends.append((time.process_time(), time.perf_counter()))

    with tempfile.TemporaryDirectory() as folder:
        config = settings(model, cohort, rounds, f"{folder}/run")
        run_inline(config, 100, workers=workers, tell=tell)
    # The first rounds fetch the clients' data, the last one evaluates.
    first, last = rounds // 3, rounds - 2
    cpu, wall = (end - start for start, end in zip(ends[first], ends[last], strict=True))
    return (last - first) / cpu, (last - first) / wall


def ray() -> float:
    """Return rounds per second on Flower's Ray backend, its start not counted."""
    with tempfile.TemporaryDirectory() as folder:
        out = run_ray(settings("softmax", 10, 40, f"{folder}/run"), 100, tell=lambda line: None)
        lines = [json.loads(line) for line in (out / "rounds.jsonl").open()]
    took = [sum(v for k, v in line["seconds"].items() if k != "evaluate") for line in lines[10:-1]]
    return 1 / statistics.median(took)


def environment(engine: str) -> str:
    """Return the interpreter of an engine's environment, made if need be.

    Raises RuntimeError if that fails.
    """
    packages, versions = PEERS[engine]
    folder = HERE.parent / f".venv-{engine}"
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return str(python)
    base = next(filter(None, map(interpreter, versions)), None)
    if base is None:
        needed = " or ".join(versions)
        raise RuntimeError(f"{packages[0]} needs Python {needed}, on the PATH or in ~/.pyenv")
    print(f"installing {packages[0]} into {folder.name}", flush=True)
    torch_version = torch.__version__.partition("+")[0]
    install = ["install", "--quiet", *packages, f"torch=={torch_version}"]
    for command in ([base, "-m", "venv", "--clear", folder], [python, "-m", "pip", *install]):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            last = "".join(done.stderr.strip().splitlines()[-1:])
            raise RuntimeError(f"{packages[0]} could not be installed ({last})")
    (folder / "ready").touch()
    return str(python)


def interpreter(version: str) -> str | None:
    """Return a Python of this version that starts, from the PATH or from pyenv."""
    name = f"python{version}"
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/{name}"))
    for candidate in (name, *map(str, pyenv)):
        found = shutil.which(candidate)
        if found and not subprocess.run([found, "-V"], check=False, capture_output=True).returncode:
            return found
    return None


if __name__ == "__main__":
    main()
