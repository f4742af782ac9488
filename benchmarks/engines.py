"""Rounds per second of the inline engine against other simulators, side by side.

Run with `make bench-engines`. Fashion-MNIST, 100 clients, one step of batch 16, one thread each, in
seconds of CPU time, which other processes disturb less than the wall clock.
BlazeFL 2.0.3 is installed into an environment of its own (it needs Python 3.12 or later). Engines
take turns; figures are medians.
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
PEERS = HERE.parent / ".venv-blazefl"
REPEATS, SECONDS = 5, 4.0
JOBS = (("softmax", 10, 1.1), ("softmax", 18, 1.3), ("cnn", 10, 1.0))
RAY_BOUND = 20.0


def main() -> None:
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(name, None)
    if sys.argv[1:2] == ["inline"]:
        print(inline(sys.argv[2], int(sys.argv[3])))
        return
    peer = blazefl_python()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        dataset = load_dataset("fashion-mnist", "", seed=0)
        np.savez(data, x=dataset.x_train, y=dataset.y_train)
        print(
            f"{'model':8} {'a round':>7}  {'plain':>6}  {'BlazeFL':>7}  {'inline':>6}  ratio  bound"
        )
        for model, cohort, bound in JOBS:
            speeds: dict[str, list[float]] = {"plain": [], "blazefl": [], "inline": []}
            script = str(HERE / "engines_peer.py")
            for _ in range(REPEATS):
                for engine in ("plain", "blazefl"):
                    options = [engine, str(data), model, str(cohort), str(SECONDS)]
                    speeds[engine].append(measure([peer, script, *options]))
                own = [sys.executable, __file__, "inline", model, str(cohort)]
                speeds["inline"].append(measure(own))
            plain, blazefl, own_speed = (statistics.median(values) for values in speeds.values())
            pairs = zip(speeds["inline"], speeds["blazefl"], strict=True)
            ratio = statistics.median(ours / theirs for ours, theirs in pairs)
            missed = "" if ratio >= bound else "  MISSED"
            print(
                f"{model:8} {cohort:7}  {plain:6.0f}  {blazefl:7.0f}  {own_speed:6.0f}  "
                f"{ratio:5.2f}  {bound:5.2f}{missed}",
                flush=True,
            )
            if (model, cohort) == ("softmax", 10):
                softmax = own_speed
    speed = ray()
    missed = "" if softmax >= RAY_BOUND * speed else "  MISSED"
    print(
        f"\nFlower's Ray backend, softmax, 10 a round: {speed:.1f} rounds/s; "
        f"inline is {softmax / speed:.0f} times faster, bound {RAY_BOUND:.0f}{missed}"
    )


def measure(command: list[str]) -> float:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


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


def inline(model: str, cohort: int) -> float:
    """Return rounds per second, everything a run does included but evaluation and start."""
    torch.set_num_threads(1)
    rounds = 1500 if model == "softmax" else 150
    ends: list[float] = []

    def tell(line: str) -> None:
        if line.startswith("round"):
            ends.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        # The first rounds fetch the clients' data, the last one evaluates.
        run_inline(settings(model, cohort, rounds, f"{folder}/run"), 100, tell=tell)
    warm = rounds // 3
    return (rounds - 2 - warm) / (ends[rounds - 2] - ends[warm])


def ray() -> float:
    """Return rounds per second on Flower's Ray backend, its start not counted."""
    with tempfile.TemporaryDirectory() as folder:
        out = run_ray(settings("softmax", 10, 40, f"{folder}/run"), 100, tell=lambda line: None)
        lines = [json.loads(line) for line in (out / "rounds.jsonl").open()]
    took = [sum(v for k, v in line["seconds"].items() if k != "evaluate") for line in lines[10:-1]]
    return 1 / statistics.median(took)


def blazefl_python() -> str:
    """Return the interpreter of BlazeFL's environment, which is made if need be."""
    python = PEERS / "bin" / "python"
    if not (PEERS / "ready").exists():
        base = next((p for p in ("python3.12", "python3.13") if shutil.which(p)), None)
        if base is None:
            sys.exit("BlazeFL 2.0.3 needs python3.12 or python3.13 on the PATH")
        subprocess.run([base, "-m", "venv", "--clear", PEERS], check=True)
        version = torch.__version__.partition("+")[0]
        packages = ["blazefl==2.0.3", f"torch=={version}", "numpy", "tqdm"]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        (PEERS / "ready").touch()
    return str(python)


if __name__ == "__main__":
    main()
