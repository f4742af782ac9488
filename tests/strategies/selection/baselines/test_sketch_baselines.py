"""K-means on L2 and cosine diversity."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus

from strategies.selection.baselines import select_cosine_diversity, select_kmeans_l2
from strategies.selection.baselines.kmeans_l2 import _starts

Floats = NDArray[np.float64]


def grouped(seed: int) -> tuple[Floats, NDArray[np.int64]]:
    groups = np.repeat(np.arange(4), [8, 5, 3, 4])
    noise = np.random.default_rng(seed).normal(size=(20, 6))
    return 10 * np.eye(6)[groups] + 0.1 * noise, groups


def test_kmeans_picks_the_client_nearest_each_centre() -> None:
    points, groups = grouped(0)
    rows = select_kmeans_l2(points, 4, rng=np.random.default_rng(0))
    expected = []
    for group in range(4):
        members = np.flatnonzero(groups == group)
        centre = points[members].mean(axis=0)
        expected.append(members[np.argmin(np.linalg.norm(points[members] - centre, axis=1))])
    assert set(rows) == set(expected)
    assert groups[rows].tolist() == [0, 1, 3, 2]  # the largest cluster first


@pytest.mark.parametrize("budget", range(1, 7))
def test_kmeans_fills_empty_clusters(budget: int) -> None:
    points = np.eye(3)[[0, 0, 1, 1, 2, 2]]
    rows = select_kmeans_l2(points, budget, rng=np.random.default_rng(0))
    assert len(set(rows)) == budget
    assert len({int(np.argmax(points[row])) for row in rows}) == min(budget, 3)


def test_kmeans_filler_is_the_farthest_from_its_centre() -> None:
    # All but one are the same: two clusters at most, the fillers come from the larger one.
    points = np.zeros((5, 2))
    points[4] = 1.0
    rows = select_kmeans_l2(points, 3, rng=np.random.default_rng(0))
    assert rows.tolist() == [0, 4, 1]


def test_kmeans_is_seeded() -> None:
    points = np.random.default_rng(1).normal(size=(60, 3))
    first, second = (select_kmeans_l2(points, 8, rng=np.random.default_rng(5)) for _ in range(2))
    assert np.array_equal(first, second)


def test_kmeans_starts_are_as_good_as_scikit_learns() -> None:
    rng = np.random.default_rng(2)
    points = 0.5 * rng.normal(size=(12, 6))[rng.integers(0, 12, 300)] + rng.normal(size=(300, 6))

    def loss(rows: NDArray[np.int64]) -> float:
        return float(((points[:, None] - points[rows]) ** 2).sum(axis=2).min(axis=1).sum())

    ours = [loss(rows) for rows in _starts(points, 8, 200, rng)]
    theirs = [loss(kmeans_plusplus(points, 8, random_state=seed)[1]) for seed in range(200)]
    error = np.hypot(np.std(ours), np.std(theirs)) / np.sqrt(200)
    assert abs(np.mean(ours) - np.mean(theirs)) < 4 * error
    uniform = [loss(rng.choice(300, 8, replace=False)) for _ in range(200)]
    assert np.mean(uniform) - np.mean(ours) > 4 * error  # so that a plain draw would be noticed


def test_kmeans_scale_and_precision() -> None:
    points, _ = grouped(3)
    rows = set(select_kmeans_l2(points, 4, rng=np.random.default_rng(0)))
    for same in (points * 1e200, points * 1e-200, points.astype(np.float32)):
        assert set(select_kmeans_l2(same, 4, rng=np.random.default_rng(0))) == rows


def plain_cosine(points: Floats, budget: int) -> list[int]:
    lengths = np.linalg.norm(points, axis=1)
    rows = [int(np.argmax(lengths))]
    while len(rows) < budget:
        left = [row for row in range(len(points)) if row not in rows]
        rows.append(
            min(
                left,
                key=lambda row: max(
                    float(points[row] @ points[other] / lengths[row] / lengths[other])
                    for other in rows
                ),
            )
        )
    return rows


@given(st.integers(1, 20), st.integers(2, 8), st.data(), st.integers(0, 2**32))
def test_cosine_is_the_greedy_rule(
    clients: int, width: int, data: st.DataObject, seed: int
) -> None:
    points = np.random.default_rng(seed).normal(size=(clients, width))
    budget = data.draw(st.integers(1, clients))
    assert select_cosine_diversity(points, budget).tolist() == plain_cosine(points, budget)


def test_cosine_by_hand() -> None:
    points = np.array([[3.0, 0.0], [1.0, 0.1], [0.0, 1.0], [-1.0, 0.1]])
    assert select_cosine_diversity(points, 3).tolist() == [0, 3, 2]


def test_cosine_zero_and_extreme_rows() -> None:
    points = np.array([[0.0, 0.0], [1e-310, 0.0], [1e200, 1e200], [0.0, -1e-310]])
    rows = select_cosine_diversity(points, 4)
    assert sorted(rows) == [0, 1, 2, 3]
    assert rows[:3].tolist() == [2, 3, 0]  # similarities -0.7, then 0 twice


def test_cosine_scaling_a_client_does_not_change_later_picks() -> None:
    points = np.random.default_rng(2).normal(size=(15, 4))
    points[3] *= 1e6
    rows = select_cosine_diversity(points, 6)
    scales = np.random.default_rng(3).uniform(0.1, 10, size=(15, 1))
    scales[3] = 1
    assert np.array_equal(select_cosine_diversity(points * scales, 6), rows)


def test_bad_input() -> None:
    bad = np.array([[1.0], [np.inf]])
    with pytest.raises(ValueError, match="sketches: row 1"):
        select_cosine_diversity(bad, 1)
    with pytest.raises(ValueError, match="sketches: row 1"):
        select_kmeans_l2(bad, 1, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="budget: got 3, must be at most the 2 clients"):
        select_cosine_diversity(np.ones((2, 2)), 3)
