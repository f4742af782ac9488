"""SCKM-Cluster: clustering, the elbow, apportionment and the picks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.selection import (
    apportion,
    cluster_sckm,
    elbow,
    sckm_matrix,
    select_sckm,
    select_sckm_cluster,
)


def rng():
    return np.random.default_rng(0)


def problem(seed, clients=40, entries=12, groups=4):
    """Clients of a few kinds, each with its own direction."""
    random = np.random.default_rng(seed)
    kinds = 4 * random.standard_normal((groups, entries))
    noise = random.standard_normal((clients, entries))
    return (kinds[np.arange(clients) % groups] + noise).astype(np.float32)


def dissimilarity(sketches):
    matrix = sckm_matrix(sketches)
    np.fill_diagonal(matrix, np.inf)
    matrix -= matrix.min()
    np.fill_diagonal(matrix, 0)
    return matrix


def loss(sketches, medoids):
    return dissimilarity(sketches)[medoids].min(axis=0).sum()


@pytest.mark.parametrize("seed", range(10))
def test_labels_medoids_and_losses_agree(seed):
    sketches = problem(seed)
    clustering = cluster_sckm(sketches, 12, min_clusters=2, rng=rng())
    count = len(clustering.medoids)
    assert clustering.losses.shape == (11,)
    assert len(set(clustering.medoids)) == count
    assert 2 <= count <= 12
    np.testing.assert_array_equal(clustering.labels[clustering.medoids], np.arange(count))
    distances = dissimilarity(sketches)
    to_medoid = distances[clustering.medoids[clustering.labels], np.arange(len(sketches))]
    np.testing.assert_allclose(to_medoid.sum(), loss(sketches, clustering.medoids))
    np.testing.assert_allclose(clustering.losses[count - 2], to_medoid.sum(), rtol=1e-5)
    assert (np.diff(clustering.losses) <= 1e-6 * clustering.losses[0]).all()


@pytest.mark.parametrize("seed", range(10))
def test_the_loss_is_near_the_best_of_all_subsets(seed):
    sketches = problem(seed, clients=9, entries=5)
    clustering = cluster_sckm(sketches, 4, rng=rng())
    for count, value in enumerate(clustering.losses, start=1):
        subsets = itertools.combinations(range(9), count)
        best = min(loss(sketches, list(medoids)) for medoids in subsets)
        assert value >= best * (1 - 1e-5)
        # PAM is a local search; from a greedy start it stays close on problems this small.
        assert value <= best * (1.001 if count == 1 else 1.15)


def test_permuting_clients_permutes_the_clusters():
    sketches = problem(1)
    order = np.random.default_rng(5).permutation(len(sketches))
    one = cluster_sckm(sketches, 10, rng=rng())
    two = cluster_sckm(sketches[order], 10, rng=rng())
    assert len(one.medoids) == len(two.medoids)
    np.testing.assert_allclose(one.losses, two.losses, rtol=0.05)
    rows = select_sckm_cluster(sketches, 10, rng=rng())
    assert set(order[select_sckm_cluster(sketches[order], 10, rng=rng())]) == set(rows)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=20),
    st.integers(-1000, 1000),
)
def test_a_shift_of_the_scores_cannot_move_the_elbow(losses, shift):
    # Adding t to every pair adds t to the loss of each of the K - C clients that are no medoid.
    curve = np.array(losses, dtype=np.float64)
    shifted = curve + shift * (100.0 - np.arange(len(curve)))
    depths = np.linspace(curve[0], curve[-1], len(curve)) - curve
    # Exact ties between two elbows may go either way.
    assert depths[elbow(shifted)] == pytest.approx(depths[elbow(curve)], abs=1e-6)


def test_the_elbow_by_hand():
    assert elbow([10.0, 4.0, 3.0, 2.0]) == 1
    assert elbow([10.0, 8.0, 2.0, 1.0]) == 2
    assert elbow([3.0, 2.0, 1.0]) == 0
    assert elbow([1.0, 3.0, 1.0]) == 0
    assert elbow([0.0, 0.0]) == 0
    assert elbow([5.0]) == 0


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(lambda sizes: sum(sizes) > 0),
    st.data(),
)
def test_apportionment_is_exact_proportional_and_possible(sizes, data):
    budget = data.draw(st.integers(1, sum(sizes)))
    shares = apportion(sizes, budget)
    quota = budget * np.array(sizes) / sum(sizes)
    assert shares.sum() == budget
    assert (shares <= sizes).all()
    assert (shares >= np.floor(quota - 1e-9)).all()
    assert (shares <= np.ceil(quota + 1e-9)).all()


def test_apportionment_by_hand():
    # Quotas 4.2, 3.0, 2.8: the one place left goes to the largest remainder.
    np.testing.assert_array_equal(apportion([42, 30, 28], 10), [4, 3, 3])
    # The paper's ceilings would give 2 + 2 + 2 = 6 of 4.
    np.testing.assert_array_equal(apportion([5, 5, 5], 4), [2, 1, 1])
    np.testing.assert_array_equal(apportion([3, 0, 2], 5), [3, 0, 2])


@pytest.mark.parametrize(
    ("sizes", "budget", "error", "message"),
    [
        ([3, 2], 6, ValueError, "at most the 5"),
        ([3, 2], 0, ValueError, "budget"),
        ([3, -1], 1, ValueError, "sizes"),
        ([1.5, 2.0], 1, ValueError, "sizes"),
        ([3, 2], 1.0, TypeError, "budget"),
    ],
)
def test_bad_apportionments_are_named(sizes, budget, error, message):
    with pytest.raises(error, match=message):
        apportion(sizes, budget)


@pytest.mark.parametrize("seed", range(20))
def test_exactly_the_budget_is_picked_from_the_clusters_in_proportion(seed):
    sketches = problem(seed)
    budget = 1 + seed
    before = sketches.copy()
    rows = select_sckm_cluster(sketches, budget, rng=rng())
    np.testing.assert_array_equal(sketches, before)
    assert len(set(rows)) == budget
    labels = cluster_sckm(sketches, budget, rng=rng()).labels
    np.testing.assert_array_equal(
        np.bincount(labels[rows], minlength=labels.max() + 1),
        apportion(np.bincount(labels), budget),
    )
    for cluster in set(labels[rows]):
        members = np.flatnonzero(labels == cluster)
        share = int((labels[rows] == cluster).sum())
        expected = members[select_sckm(sketches[members], share)]
        np.testing.assert_array_equal(rows[labels[rows] == cluster], expected)


def test_with_one_cluster_it_is_sckm_select():
    # A budget of 1 allows one cluster only; identical clients have no elbow and so one cluster.
    sketches = problem(3)
    np.testing.assert_array_equal(
        select_sckm_cluster(sketches, 1, rng=rng()), select_sckm(sketches, 1)
    )
    same = np.tile(sketches[:1], (20, 1))
    ages = np.arange(20) % 7
    assert len(cluster_sckm(same, 8, rng=rng()).medoids) == 1
    np.testing.assert_array_equal(
        select_sckm_cluster(same, 8, rng=rng(), age=ages), select_sckm(same, 8, age=ages)
    )


def test_with_one_cluster_of_different_clients_it_is_sckm_select(monkeypatch):
    monkeypatch.setattr("strategies.selection.cluster.elbow", lambda losses: 0)
    for seed in range(10):
        sketches = problem(seed)
        ages = np.random.default_rng(seed).integers(0, 9, len(sketches))
        for weight in (0.0, 0.4):
            np.testing.assert_array_equal(
                select_sckm_cluster(sketches, 9, rng=rng(), age=ages, age_weight=weight),
                select_sckm(sketches, 9, age=ages, age_weight=weight),
            )


@pytest.mark.parametrize(
    "sketches",
    [
        np.zeros((15, 4), dtype=np.float32),
        np.ones((15, 4), dtype=np.float32),
        np.vstack([np.zeros((1, 4)), problem(4, clients=14, entries=4)]),
        problem(5, clients=15, entries=1),
        np.full((15, 4), 1e-42, dtype=np.float32),
        problem(6, clients=15) * np.where(np.arange(15) == 3, 1e6, 1)[:, None],
        np.repeat(problem(7, clients=5), 3, axis=0),
    ],
    ids=["zero", "equal", "a zero update", "one entry", "denormal", "one huge", "triplets"],
)
@pytest.mark.parametrize("budget", [1, 2, 7, 14, 15])
def test_degenerate_pools_still_give_the_budget(sketches, budget):
    for threshold in (2_000, 10):
        clustering = cluster_sckm(sketches, budget, rng=rng(), threshold=threshold)
        count = len(clustering.medoids)
        assert np.isfinite(clustering.losses).all()
        np.testing.assert_array_equal(clustering.labels[clustering.medoids], np.arange(count))
        rows = select_sckm_cluster(sketches, budget, rng=rng(), threshold=threshold)
        assert len(set(rows)) == budget


@pytest.mark.parametrize("seed", range(200))
def test_float32_and_float64_pick_the_same(seed):
    sketches = np.random.default_rng(seed).standard_normal((24, 10))
    np.testing.assert_array_equal(
        select_sckm_cluster(sketches.astype(np.float32), 6, rng=rng()),
        select_sckm_cluster(sketches, 6, rng=rng()),
    )


def test_a_sampled_pool_is_clustered_almost_as_well_as_a_whole_one():
    sketches = problem(8, clients=3_000, entries=64, groups=12)
    sampled = cluster_sckm(sketches, 20, rng=rng(), threshold=2_500)
    count = len(sampled.medoids)
    whole = cluster_sckm(sketches, count, min_clusters=count, rng=rng(), threshold=3_000)
    assert loss(sketches, sampled.medoids) <= 1.03 * loss(sketches, whole.medoids)
    matrix = sckm_matrix(sketches)
    np.fill_diagonal(matrix, -np.inf)
    np.testing.assert_array_equal(sampled.labels, matrix[sampled.medoids].argmin(axis=0))


def test_samples_come_from_the_generator_alone():
    sketches = problem(9, clients=2_500, entries=8)
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    one, two = (cluster_sckm(sketches, 8, rng=rng()) for _ in range(2))
    np.testing.assert_array_equal(one.labels, two.labels)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"min_clusters": 0}, ValueError, "min_clusters"),
        ({"min_clusters": 6}, ValueError, "at most the budget 5"),
        ({"min_clusters": 1.5}, TypeError, "min_clusters"),
        ({"backend": "pam"}, ValueError, "backend: got 'pam'"),
        ({"threshold": 0}, ValueError, "threshold"),
    ],
)
def test_bad_options_are_named(options, error, message):
    with pytest.raises(error, match=message):
        cluster_sckm(problem(10), 5, rng=rng(), **options)


@pytest.mark.parametrize("threshold", [10, 2_000])
def test_a_bad_entry_is_named_by_its_row(threshold):
    sketches = problem(11)
    sketches[17, 3] = np.nan
    with pytest.raises(ValueError, match="row 17"):
        select_sckm_cluster(sketches, 5, rng=rng(), threshold=threshold)
