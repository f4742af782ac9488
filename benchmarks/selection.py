"""Measure selection against the bounds it must hold to; every figure is a ratio within one run.

    python benchmarks/selection.py

Prints one line a bound. A miss is printed as such and does not fail the command: on a busy machine
a ratio between one thread and several says little.
"""

from __future__ import annotations

import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from strategies.selection import (
    cluster_sckm,
    dpp_kernel,
    sckm_matrix,
    sckm_scores,
    select_adcs,
    select_sckm_cluster,
)

ENTRIES = 1_024
BUDGET = 50
THETA = 0.8


def main() -> None:
    many = make_sketches(100_000)
    few = many[:10_000]
    quality = np.random.default_rng(2).uniform(0, 1, len(many))
    print(f"{'what':66} {'measured':>12} {'bound':>10}")

    total = seconds(lambda: many.sum(axis=0))
    small, large = seconds(lambda: sckm_scores(few)), seconds(lambda: sckm_scores(many))
    report("sckm_scores 100,000: time / one sum(axis=0)", large / total, "<=", 5)
    exact = sckm_scores_by_formula(many)
    error = np.abs(sckm_scores(many) / exact - 1).max()
    report("sckm_scores 100,000: largest relative error", error, "<=", 1e-6)
    pairs = seconds(lambda: scores_through_pairs(few), 3)
    report("sckm_scores 10,000: time through sckm_matrix / time", pairs / small, ">=", 250)
    report("sckm_scores: growth of time for 10 x the clients", large / small, "<=", 15)

    def adcs(clients: int, theta: float) -> Callable[[], object]:
        return lambda: select_adcs(many[:clients], quality[:clients], theta, BUDGET)

    small, large = seconds(adcs(10_000, THETA)), seconds(adcs(100_000, THETA))
    start = time.perf_counter()
    plain = plain_greedy(few, quality[:10_000])
    pairs = time.perf_counter() - start
    report("select_adcs 10,000: time of kernel and plain greedy / time", pairs / small, ">=", 20)
    same = np.array_equal(plain, select_adcs(few, quality[:10_000], THETA, BUDGET))
    report("select_adcs 10,000: same rows as plain greedy (1 = yes)", same, ">=", 1)
    report("select_adcs 100,000: time / one sum(axis=0)", large / total, "<=", 15)
    report("select_adcs 100,000: peak memory / sketches", peak(many, adcs(100_000, 0)), "<=", 1.5)
    report("select_adcs: growth of time for 10 x the clients", large / small, "<=", 15)
    lazy = seconds(adcs(100_000, 0))
    columns = seconds(lambda: by_columns(many), 3)
    report("select_adcs 100,000, theta 0: time / time by columns", lazy / columns, "<=", 1)

    def cluster(clients: int) -> Callable[[], object]:
        return lambda: select_sckm_cluster(many[:clients], BUDGET, rng=np.random.default_rng(3))

    small, large = seconds(cluster(10_000)), seconds(cluster(100_000))
    report("select_sckm_cluster 10,000: seconds", small, "<=", 10)
    report("select_sckm_cluster 100,000: seconds", large, "<=", 15)
    report("select_sckm_cluster: growth of time for 10 x the clients", large / small, "<=", 15)
    memory = peak(many, cluster(100_000))
    report("select_sckm_cluster 100,000: peak memory / sketches", memory, "<=", 2)
    report("select_sckm_cluster 10,000: loss / full-matrix fit", loss_ratio(few), "<=", 1.03)


def report(what: str, value: float, sign: str, bound: float) -> None:
    holds = value <= bound if sign == "<=" else value >= bound
    verdict = "pass" if holds else "MISS"
    print(
        f"{what:66} {float(value):12.3g} {sign + ' ' + format(bound, 'g'):>10}  {verdict}",
        flush=True,
    )


def make_sketches(clients: int) -> np.ndarray:
    """Clients of 20 kinds: a direction each, and noise."""
    rng = np.random.default_rng(1)
    kinds = rng.standard_normal((20, ENTRIES), dtype=np.float32)
    sketches = rng.standard_normal((clients, ENTRIES), dtype=np.float32)
    for row, kind in enumerate(rng.integers(0, 20, clients)):
        sketches[row] += kinds[kind]
    return sketches


def seconds(function: Callable[[], object], repeats: int = 5) -> float:
    """Return the median time of several calls, the first, which warms up, not counted."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peak(sketches: np.ndarray, function: Callable[[], object]) -> float:
    """Return the peak memory of a call, the sketches included, as a multiple of the sketches."""
    tracemalloc.start()
    function()
    extra = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return 1 + extra / sketches.nbytes


def sckm_scores_by_formula(sketches: np.ndarray) -> np.ndarray:
    """Return Eq. 9 in float64, the client's own terms taken out entry by entry."""
    clients, entries = sketches.shape
    sum1 = sketches.sum(axis=0, dtype=np.float64)
    sum2 = sum(np.square(row, dtype=np.float64) for row in sketches)
    scores = np.empty(clients)
    for row, sketch in enumerate(sketches.astype(np.float64)):
        square = np.square(sketch)
        scores[row] = (sketch * (sum2 - square) + square * (sum1 - sketch)).sum()
    return scores / ((clients - 1) * entries)


def scores_through_pairs(sketches: np.ndarray) -> np.ndarray:
    matrix = sckm_matrix(sketches)
    return (matrix.sum(axis=1) - np.diag(matrix)) / (len(matrix) - 1)


def plain_greedy(sketches: np.ndarray, quality: np.ndarray) -> list[int]:
    """Build the kernel and run the greedy of Chen et al. on it."""
    kernel = dpp_kernel(sketches, quality, THETA)
    gains = np.diag(kernel).copy()
    factors = np.zeros((BUDGET, len(kernel)))
    rows: list[int] = []
    for step in range(BUDGET):
        row = int(gains.argmax())
        rows.append(row)
        factor = kernel[row] - factors[:step, row] @ factors[:step]
        factors[step] = factor / np.sqrt(gains[row])
        gains -= np.square(factors[step])
        gains[rows] = -np.inf
    return rows


def by_columns(sketches: np.ndarray) -> list[int]:
    """Greedy at theta 0 that brings every client up to date after every pick, in float32."""
    norms = np.sqrt(np.einsum("ij,ij->i", sketches, sketches))
    rest = np.ones(len(sketches))
    basis = np.empty((BUDGET, sketches.shape[1]))
    rows: list[int] = []
    for step in range(BUDGET):
        row = int(rest.argmax())
        rows.append(row)
        vector = sketches[row].astype(np.float64)
        vector -= basis[:step].T @ (basis[:step] @ vector)
        basis[step] = vector / np.linalg.norm(vector)
        rest -= np.square(sketches @ basis[step].astype(np.float32) / norms)
        rest[rows] = -np.inf
    return rows


def loss_ratio(sketches: np.ndarray) -> float:
    """Return the loss of the sampled fit over that of a fit on all pairs with as many clusters."""
    rng = np.random.default_rng(4)
    sampled = cluster_sckm(sketches, BUDGET, rng=rng).medoids
    count = len(sampled)
    whole = cluster_sckm(
        sketches, count, min_clusters=count, rng=rng, threshold=len(sketches)
    ).medoids
    matrix = sckm_matrix(sketches)
    np.fill_diagonal(matrix, np.inf)
    matrix -= matrix.min()
    np.fill_diagonal(matrix, 0)
    return matrix[sampled].min(axis=0).sum() / matrix[whole].min(axis=0).sum()


if __name__ == "__main__":
    main()
