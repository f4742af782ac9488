"""Time of one selection from 1,000 clients, every baseline: median of the repeats.

On a busy machine set OMP_NUM_THREADS=OPENBLAS_NUM_THREADS=1 and go by the CPU time.
Run from the repository root:

    python benchmarks/baselines.py [--clients 1000] [--budget 10] [--entries 256] [--repeats 15]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from strategies.selection import baselines, select_adcs


def cases(clients: int, budget: int, entries: int) -> dict[str, Callable[[], object]]:
    rng = np.random.default_rng(0)
    sketches = rng.normal(size=(clients, entries)).astype(np.float32)
    losses = rng.uniform(0.1, 3, size=clients)
    norms = rng.uniform(0.1, 3, size=clients)
    examples = rng.integers(10, 500, size=clients)
    seconds = rng.uniform(1, 9, size=clients)
    ages = rng.integers(1, 50, size=clients)
    rewards = np.where(rng.random(clients) < 0.5, baselines.oort_rewards(losses, examples), np.nan)
    changes = rng.normal(size=(100, 15)) @ rng.normal(size=(15, clients))
    embedding = baselines.fit_fedcor(changes, np.arange(100))

    def power_of_choice() -> object:
        asked = baselines.draw_candidates(examples, clients // 2, rng)
        return baselines.select_power_of_choice(losses[asked], budget, rng)

    def oort() -> object:
        scores = baselines.oort_scores(rewards, ages, seconds, round=60)
        return baselines.select_oort(scores, seconds, budget, rng, exploration=0.5)

    def afl() -> object:
        values = baselines.afl_valuations(losses, examples)
        return baselines.select_afl(values, budget, rng)

    return {
        "uniform": lambda: baselines.select_uniform(clients, budget, rng),
        "round-robin": lambda: baselines.select_round_robin(ages, budget),
        "power-of-choice": power_of_choice,
        "ocs": lambda: baselines.select_ocs(norms, budget),
        "ocs, probabilistic": lambda: baselines.sample_ocs(norms, examples, budget, rng),
        "afl": afl,
        "divfl": lambda: baselines.select_divfl(sketches, budget),
        "divfl, stochastic": lambda: baselines.select_divfl(sketches, budget, epsilon=0.1, rng=rng),
        "fedcor": lambda: baselines.select_fedcor(embedding, examples, np.ones(clients), budget),
        "fedcor's refit, 100 rounds": lambda: baselines.fit_fedcor(changes, np.arange(100)),
        "gpfl": lambda: baselines.select_gpfl(losses, ages, budget, round=60),
        "kmeans-l2": lambda: baselines.select_kmeans_l2(sketches, budget, rng=rng),
        "static-dpp": lambda: select_adcs(sketches, np.zeros(clients), 0.0, budget),
        "cosine-diversity": lambda: baselines.select_cosine_diversity(sketches, budget),
        "oort": oort,
        "fedcs": lambda: baselines.select_fedcs(seconds, budget, rng),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--budget", type=int, default=10)
    parser.add_argument("--entries", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    print(f"{options.clients} clients, {options.budget} picked, {options.entries} sketch entries")
    for name, call in cases(options.clients, options.budget, options.entries).items():
        call()  # the first call pays for loading libraries
        wall, cpu = [], []
        for _ in range(options.repeats):
            start, worked = time.perf_counter(), time.process_time()
            call()
            wall.append(1000 * (time.perf_counter() - start))
            cpu.append(1000 * (time.process_time() - worked))
        print(f"{name:28} {np.median(wall):9.2f} ms, CPU {np.median(cpu):9.2f} ms")


if __name__ == "__main__":
    main()
