"""Inclusion frequencies of every randomised selector against its exact probabilities.

Each test draws 20,000 cohorts. A frequency is binomial with standard deviation
sqrt(p (1 - p) / 20,000); the limit of 4.5 of them is passed by a right selector with probability
0.99999 a client, 0.9995 over all clients below. Clients that are certain or impossible must be
exactly so. The exact probabilities are found by enumeration, not by the code under test.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import ceil, comb, log

import numpy as np
import pytest
from numpy.typing import NDArray

from strategies.selection.baselines import (
    draw_candidates,
    draw_without_replacement,
    sample_ocs,
    select_afl,
    select_divfl,
    select_fedcs,
    select_oort,
    select_power_of_choice,
    select_uniform,
)

DRAWS = 20_000
LIMIT = 4.5  # standard deviations

Rng = np.random.Generator
Floats = NDArray[np.float64]


def successive(weights: Floats, size: int) -> Floats:
    """Inclusion probabilities of successive draws proportional to weight, by enumeration.

    `reached[S]` is the probability that the first |S| draws are the set S, whatever their order.
    """
    clients = len(weights)
    reached = {frozenset[int](): 1.0}
    for _ in range(size):
        following: dict[frozenset[int], float] = {}
        for drawn, probability in reached.items():
            left = [row for row in range(clients) if row not in drawn]
            total = sum(weights[row] for row in left)
            for row in left:
                grown = drawn | {row}
                share = probability * weights[row] / total
                following[grown] = following.get(grown, 0.0) + share
        reached = following
    return np.array(
        [sum(chance for drawn, chance in reached.items() if row in drawn) for row in range(clients)]
    )


def assert_frequencies(
    draw: Callable[[Rng], NDArray[np.int64]], exact: Floats, *, seed: int = 20260
) -> None:
    rng = np.random.default_rng(seed)
    counts = np.zeros(len(exact))
    for _ in range(DRAWS):
        rows = draw(rng)
        assert len(set(rows.tolist())) == len(rows)
        counts[rows] += 1
    exact = np.where(np.abs(exact - 1) < 1e-12, 1.0, exact)
    spread = np.sqrt(exact * (1 - exact) / DRAWS)
    excess = np.abs(counts / DRAWS - exact) - LIMIT * spread
    assert (excess <= 0).all(), f"{counts / DRAWS} against {exact}, sd {spread}"


EXAMPLES = np.array([10, 500, 40, 40, 200, 1000])


def test_the_enumeration_itself() -> None:
    # Two of three, weights 1, 2, 3: P(0) = 1/6 + (2/6)(1/4) + (3/6)(1/3) = 5/12.
    exact = successive(np.array([1.0, 2.0, 3.0]), 2)
    assert exact[0] == pytest.approx(5 / 12)
    assert exact.sum() == pytest.approx(2)


def test_the_check_can_fail() -> None:
    # Uniform candidates, the trap in public power-of-choice code, are far from the formula.
    exact = successive(EXAMPLES / EXAMPLES.sum(), 3)
    with pytest.raises(AssertionError, match="against"):
        assert_frequencies(lambda rng: select_uniform(6, 3, rng), exact)


def test_uniform() -> None:
    assert_frequencies(lambda rng: select_uniform(7, 3, rng), np.full(7, 3 / 7))


def test_draw_without_replacement() -> None:
    weights = np.array([0.05, 0.1, 0.15, 0.3, 0.4])
    assert_frequencies(
        lambda rng: draw_without_replacement(np.log(weights), 2, rng), successive(weights, 2)
    )


def test_power_of_choice_candidates() -> None:
    assert_frequencies(
        lambda rng: draw_candidates(EXAMPLES, 3, rng), successive(EXAMPLES / EXAMPLES.sum(), 3)
    )


def test_power_of_choice_with_ties() -> None:
    losses = np.array([2.0, 1.0, 1.0, np.inf, 1.0, 0.5])
    assert_frequencies(
        lambda rng: select_power_of_choice(losses, 4, rng), np.array([1, 2 / 3, 2 / 3, 1, 2 / 3, 0])
    )


def test_afl() -> None:
    values = np.array([1.0, 30.0, 20.0, 60.0, 5.0, 90.0, 40.0, 10.0])
    clients, budget, alpha1, alpha2, alpha3 = 8, 4, 0.25, 0.02, 0.3
    kept = values >= 10  # the floor(0.25 * 8) = 2 lowest are left out
    drawn = 2  # floor(0.7 * 4)
    first = np.zeros(clients)
    first[kept] = successive(np.exp(alpha2 * values[kept]), drawn)
    # The fill takes each row not drawn yet with the same probability.
    exact = first + (1 - first) * (budget - drawn) / (clients - drawn)
    assert_frequencies(
        lambda rng: select_afl(values, budget, rng, alpha1=alpha1, alpha2=alpha2, alpha3=alpha3),
        exact,
    )


def test_afl_with_ties_at_the_exclusion_and_newcomers() -> None:
    values = np.array([5.0, 5.0, 5.0, np.nan])  # the newcomer counts as 5
    exact = np.full(4, 1 / 2)
    assert_frequencies(lambda rng: select_afl(values, 2, rng, alpha1=0.5, alpha2=1.0), exact)


def test_ocs_is_independent_with_the_formulas_probabilities() -> None:
    norms = np.array([1.0, 1.0, 1.0, 100.0])
    exact = np.array([1 / 3, 1 / 3, 1 / 3, 1.0])
    weights = np.ones(4)
    assert_frequencies(lambda rng: sample_ocs(norms, weights, 2, rng)[0], exact)
    rng = np.random.default_rng(5)
    sizes = np.bincount([len(sample_ocs(norms, weights, 2, rng)[0]) for _ in range(DRAWS)])
    binomial = np.array([0.0] + [comb(3, k) * (1 / 3) ** k * (2 / 3) ** (3 - k) for k in range(4)])
    limit = LIMIT * np.sqrt(binomial * (1 - binomial) / DRAWS)
    assert (np.abs(sizes / DRAWS - binomial) <= limit).all()


def test_ocs_aggregate_is_unbiased() -> None:
    rng = np.random.default_rng(11)
    updates = rng.normal(size=(6, 3)) * np.array([[1], [2], [0.5], [8], [1], [3]])
    weights = np.array([10, 20, 30, 5, 15, 20])
    norms = np.linalg.norm(updates, axis=1)
    full = weights / weights.sum() @ updates
    sums = np.empty((DRAWS, 3))
    for draw in range(DRAWS):
        rows, coefficients = sample_ocs(norms, weights, 2, rng)
        sums[draw] = coefficients @ updates[rows]
    error = np.abs(sums.mean(axis=0) - full)
    assert (error <= LIMIT * sums.std(axis=0) / np.sqrt(DRAWS)).all()


def test_divfl_stochastic() -> None:
    rng = np.random.default_rng(3)
    points = rng.normal(size=(7, 2))
    budget, epsilon = 2, 0.4
    size = ceil(7 / budget * log(1 / epsilon))
    assert 1 < size < 6
    distances = np.linalg.norm(points[:, None] - points, axis=2)

    def best(subset: tuple[int, ...], nearest: Floats) -> int:
        return min(subset, key=lambda row: float(np.minimum(nearest, distances[row]).sum()))

    exact = np.zeros(7)
    for subset in combinations(range(7), size):
        one = best(subset, np.full(7, np.inf))
        left = [row for row in range(7) if row != one]
        for other in combinations(left, size):
            two = best(other, distances[one])
            exact[[one, two]] += 1 / comb(7, size) / comb(6, size)
    assert exact.sum() == pytest.approx(2)
    assert_frequencies(lambda rng: select_divfl(points, budget, epsilon=epsilon, rng=rng), exact)


def test_oort_exploitation_and_exploration() -> None:
    scores = np.array([np.nan, 0.9, 0.5, np.nan, 0.3, 0.001, np.nan, 0.7, np.nan])
    seconds = np.array([np.nan, 1.0, 1.0, 4.0, 1.0, 1.0, np.nan, 1.0, np.nan])
    # Half of 4 exploit: drawn by score among those at 0.05 times the second best (0.035) or more.
    eligible = [1, 2, 4, 7]
    exact = np.zeros(9)
    exact[eligible] = successive(scores[eligible], 2)
    # Two explore: client 3, the only one with a measured time, then one of the three unmeasured.
    exact[3] = 1
    exact[[0, 6, 8]] = 1 / 3
    assert_frequencies(lambda rng: select_oort(scores, seconds, 4, rng, exploration=0.5), exact)


def test_fedcs_ties() -> None:
    seconds = np.array([3.0, np.nan, 1.0, 3.0, 0.0, 3.0, 9.0])
    exact = np.array([1 / 3, 1, 1, 1 / 3, 1, 1 / 3, 0])
    assert_frequencies(lambda rng: select_fedcs(seconds, 4, rng), exact)
