from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from strategies.selection.baselines import select_divfl

Floats = NDArray[np.float64]


def distances(points: Floats) -> Floats:
    result: Floats = np.linalg.norm(points[:, None] - points, axis=2)
    return result


def cost(pairs: Floats, rows: NDArray[np.int64] | list[int] | tuple[int, ...]) -> float:
    return float(pairs[list(rows)].min(axis=0).sum())


@given(st.integers(2, 60), st.integers(1, 20), st.data(), st.integers(0, 2**32))
def test_each_pick_is_the_best_of_those_left(
    clients: int, width: int, data: st.DataObject, seed: int
) -> None:
    points = np.random.default_rng(seed).normal(size=(clients, width))
    budget = data.draw(st.integers(1, clients))
    pairs = distances(points)
    rows = select_divfl(points, budget).tolist()
    assert len(set(rows)) == budget
    for step in range(budget):
        left = [row for row in range(clients) if row not in rows[:step]]
        best = min(cost(pairs, [*rows[:step], row]) for row in left)
        assert cost(pairs, rows[: step + 1]) <= best + 1e-9 * (1 + best)


def test_is_near_the_best_subset() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        pairs = distances(points := rng.normal(size=(9, 2)))
        best = min(cost(pairs, subset) for subset in combinations(range(9), 3))
        # Facility location is submodular: of the cost saved, greedy gets at least 1 - 1/e.
        origin = pairs.max() * 9
        assert origin - cost(pairs, select_divfl(points, 3)) >= (1 - np.exp(-1)) * (origin - best)


def test_one_of_each_group() -> None:
    rng = np.random.default_rng(4)
    groups = np.repeat(np.arange(5), 6)
    points = 10 * np.eye(5)[groups] + 0.1 * rng.normal(size=(30, 5))
    assert sorted(groups[select_divfl(points, 5)]) == list(range(5))


def test_permuting_clients_permutes_the_answer() -> None:
    rng = np.random.default_rng(1)
    points, order = rng.normal(size=(40, 8)), rng.permutation(40)
    assert np.array_equal(order[select_divfl(points[order], 10)], select_divfl(points, 10))


def test_shift_scale_and_precision_do_not_matter() -> None:
    points = np.random.default_rng(2).normal(size=(40, 8)).astype(np.float32)
    rows = select_divfl(points, 10)
    assert np.array_equal(select_divfl(points.astype(np.float64), 10), rows)
    for factor in (1e-200, 1e200):
        assert np.array_equal(select_divfl(points.astype(np.float64) * factor, 10), rows)
    assert np.array_equal(select_divfl(points.astype(np.float64) + 1000, 10), rows)


@pytest.mark.parametrize(
    "points", [np.zeros((6, 3)), np.ones((6, 3)), np.eye(6)[[0, 0, 1, 1, 1, 0]]]
)
def test_identical_clients(points: Floats) -> None:
    for budget in range(1, 7):
        assert len(set(select_divfl(points, budget))) == budget
    rng = np.random.default_rng(0)
    assert len(set(select_divfl(points, 6, epsilon=0.5, rng=rng))) == 6


def test_stochastic_scans_a_subset_and_is_seeded() -> None:
    points = np.random.default_rng(3).normal(size=(50, 4))
    picks = [
        tuple(select_divfl(points, 5, epsilon=0.5, rng=np.random.default_rng(seed)))
        for seed in (1, 1, 2)
    ]
    assert picks[0] == picks[1] != picks[2]
    # So small an epsilon scans everyone: the plain greedy answer.
    rng = np.random.default_rng(0)
    assert tuple(select_divfl(points, 5, epsilon=1e-9, rng=rng)) == tuple(select_divfl(points, 5))


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"epsilon must be between 0 and 1, got 1\.0"):
        select_divfl(np.ones((3, 2)), 1, epsilon=1.0, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="epsilon needs rng"):
        select_divfl(np.ones((3, 2)), 1, epsilon=0.5)
    with pytest.raises(ValueError, match="sketches: row 1 holds a NaN"):
        select_divfl(np.array([[1.0], [np.nan]]), 1)
    with pytest.raises(ValueError, match="sketches: expected shape"):
        select_divfl(np.ones((3, 0)), 1)
