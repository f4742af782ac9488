from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tasks.partition import PARTITIONERS, matching_test_indices, partition

Labels = NDArray[np.int64]


def make_labels(n: int = 600, classes: int = 6, seed: int = 0) -> Labels:
    return np.random.default_rng(seed).integers(0, classes, n)


def balanced_labels(per_class: int, classes: int) -> Labels:
    return np.random.default_rng(1).permutation(np.repeat(np.arange(classes), per_class))


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_no_row_twice_and_none_left_out(partitioner: str) -> None:
    labels = balanced_labels(100, 6)
    clients = partition(labels, partitioner, 12, seed=3)
    assert len(clients) == 12
    assert all(rows.dtype == np.int64 and (np.diff(rows) > 0).all() for rows in clients)
    assert np.array_equal(np.sort(np.concatenate(clients)), np.arange(600))


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_the_seed_decides(partitioner: str) -> None:
    labels = balanced_labels(100, 6)

    def joined(seed: int) -> Labels:
        return np.concatenate(partition(labels, partitioner, 12, seed=seed))

    assert np.array_equal(joined(3), joined(3))
    assert not np.array_equal(joined(3), joined(4))


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_global_random_state_and_labels_are_left_alone(partitioner: str) -> None:
    labels = balanced_labels(100, 6)
    kept = labels.copy()
    before_python, before_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    partition(labels, partitioner, 12, seed=3)
    after_numpy = np.random.get_state()  # noqa: NPY002
    assert random.getstate() == before_python
    assert all(np.array_equal(a, b) for a, b in zip(before_numpy, after_numpy, strict=True))
    assert np.array_equal(labels, kept)


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_shards_of_balanced_classes_hold_one_label_each(shards: int) -> None:
    labels = balanced_labels(120, 10)
    clients = partition(labels, "shards", 20, shards_per_client=shards)
    assert {len(rows) for rows in clients} == {1200 // (20 * shards) * shards}
    assert all(len(np.unique(labels[rows])) <= shards for rows in clients)


def test_shards_of_unequal_classes_span_a_class_boundary_at_most() -> None:
    labels = make_labels(607)
    clients = partition(labels, "shards", 10, shards_per_client=2)
    assert [len(rows) for rows in clients] == [2 * (607 // 20)] * 10
    # Every class is larger than a shard, so a shard touches two of them at most, and only the
    # 5 boundaries between the 6 classes give a client one label more than it has shards.
    extra = [max(0, len(np.unique(labels[rows])) - 2) for rows in clients]
    assert sum(extra) <= 5
    rows = np.concatenate(clients)
    assert len(np.unique(rows)) == len(rows) == 607 // 20 * 20


def test_iid_mixes_data_sorted_by_class() -> None:
    labels = np.repeat(np.arange(4), 250)
    clients = partition(labels, "iid", 5)
    assert [len(rows) for rows in clients] == [200] * 5
    for rows in clients:
        # Hypergeometric with mean 50 and standard deviation 5.5; cut in order it would be 0 or 200.
        assert (abs(np.bincount(labels[rows], minlength=4) - 50) < 30).all()


def test_dirichlet_concentration_sets_the_imbalance() -> None:
    labels = balanced_labels(300, 5)

    def largest_share(alpha: float) -> float:
        clients = partition(labels, "dirichlet", 8, alpha=alpha)
        shares = [np.bincount(labels[rows]).max() / len(rows) for rows in clients]
        return float(np.mean(shares))

    assert largest_share(1000.0) < 0.25 < largest_share(0.5) < largest_share(0.05)


def test_dirichlet_leaves_no_client_empty() -> None:
    clients = partition(make_labels(), "dirichlet", 40, alpha=0.5)
    assert min(len(rows) for rows in clients) >= 1


@given(clients=st.integers(1, 24), classes=st.integers(2, 8), seed=st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_groups_follow_the_formula(clients: int, classes: int, seed: int) -> None:
    labels = balanced_labels(30, classes)
    parts = partition(labels, "groups", clients, seed=seed)
    for i, rows in enumerate(parts):
        assert set(labels[rows].tolist()) == {i * classes // clients}
    for g in range(classes):
        sizes = [len(rows) for i, rows in enumerate(parts) if i * classes // clients == g]
        assert not sizes or (sum(sizes) == 30 and max(sizes) - min(sizes) <= 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partitioner": "sorted"}, "partitioner 'sorted': must be one of shards, dirichlet, iid"),
        ({"num_partitions": 0}, "num-partitions=0: must be at least 1"),
        ({"shards_per_client": 0}, "shards-per-client=0: must be at least 1"),
        ({"alpha": 0.0}, "alpha=0.0: must be a finite number above 0"),
        ({"alpha": float("nan")}, "alpha=nan: must be a finite number above 0"),
        ({"seed": -1}, "seed=-1: must be at least 0"),
        (
            {"partitioner": "iid", "num_partitions": 601},
            "601 clients need at least 601 training examples, the data has 600",
        ),
        (
            {"num_partitions": 100, "shards_per_client": 7},
            "100 clients with shards-per-client=7 need at least 700 training examples, "
            "the data has 600",
        ),
        (
            {"partitioner": "groups", "num_partitions": 600},
            "each needs at least one",
        ),
        (
            {"partitioner": "dirichlet", "num_partitions": 600, "alpha": 0.01},
            "cannot give each of 600 clients data",
        ),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    call = {"partitioner": "shards", "num_partitions": 10} | arguments
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        partition(make_labels(), **call)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_labels_must_be_integers() -> None:
    with pytest.raises(ValueError, match="labels must be integers"):
        partition(np.zeros(5), "iid", 2)  # type: ignore[arg-type]


@given(
    train=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    test=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    limit=st.integers(1, 40),
)
@settings(max_examples=200)
def test_matching_test_rows(train: list[int], test: list[int], limit: int) -> None:
    y_train, y_test = np.array(train), np.array(test)
    common = np.isin(y_train, y_test)
    if not common.any():
        with pytest.raises(ValueError, match="no test example has any of the client's labels"):
            matching_test_indices(y_train, y_test, seed=0, limit=limit)
        return
    rows = matching_test_indices(y_train, y_test, seed=0, limit=limit)
    assert len(np.unique(rows)) == len(rows)
    assert (np.diff(rows) > 0).all()
    shares = np.bincount(y_train[common], minlength=6) / common.sum()
    got = np.bincount(y_test[rows], minlength=6)
    assert (abs(got - len(rows) * shares) < 1 - 1e-9).all()
    # No larger size would do: brute force over all of them.
    available = np.bincount(y_test, minlength=6)
    sizes = [m for m in range(1, limit + 1) if (m * shares <= available + 1e-9).all()]
    assert len(rows) == max(sizes)


def test_matching_test_rows_depend_on_the_seed_alone() -> None:
    y_train, y_test = make_labels(50), make_labels(400, seed=5)
    first = matching_test_indices(y_train, y_test, seed=1, limit=60)
    assert np.array_equal(first, matching_test_indices(y_train, y_test, seed=1, limit=60))
    assert not np.array_equal(first, matching_test_indices(y_train, y_test, seed=2, limit=60))


def test_matching_needs_a_limit_of_one() -> None:
    with pytest.raises(ValueError, match="limit=0: must be at least 1"):
        matching_test_indices(make_labels(9), make_labels(9), seed=0, limit=0)
