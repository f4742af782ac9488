"""SCKM-Cluster: k-medoids on SCKM, the number of clusters by an elbow, SCKM-Select inside each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.selection._blocks import map_rows, row_blocks
from strategies.selection._validation import (
    as_age,
    as_budget,
    as_count,
    as_sketches,
    as_weight,
    reject_non_finite,
)
from strategies.selection.kmedoids import Backend, check_backend, improve_medoids
from strategies.selection.sckm import group_scores, rank_by_age, sckm_matrix, top_rows
from strategies.selection.types import FloatArray

__all__ = ["Clustering", "apportion", "cluster_sckm", "elbow", "select_sckm_cluster"]

_SAMPLE = 2_000
_SAMPLES = 3


@dataclass(frozen=True)
class Clustering:
    """Clients in clusters.

    Attributes
    ----------
    labels : array of shape (K,), int64
        The cluster of each client, from 0.
    medoids : array of shape (C,), int64
        The row of each cluster's medoid.
    losses : array of shape (budget - min_clusters + 1,), float64
        Sum over clients of the dissimilarity to their medoid, for each number of clusters from
        `min_clusters` on. For a sampled pool, the mean over the samples, scaled to the pool.
    """

    labels: NDArray[np.int64]
    medoids: NDArray[np.int64]
    losses: NDArray[np.float64]


def cluster_sckm(
    sketches: ArrayLike,
    budget: int,
    *,
    min_clusters: int = 1,
    rng: np.random.Generator,
    backend: Backend = "onebatch",
    threshold: int = _SAMPLE,
) -> Clustering:
    """Cluster clients by k-medoids on SCKM, the first two steps of the SCKM paper's Algorithm 2.

    SCKM may be negative and its diagonal is not zero, so the dissimilarity is S_ij - min S off the
    diagonal and 0 on it: subtracting the constant moves the loss of every choice of C medoids by
    the same amount. The paper does not say how the elbow is found; see `elbow`. The medoids of C
    clusters, and the client that lowers the loss most, are where the search for C + 1 starts.

    Departure: a pool larger than `threshold` is not clustered through its pair matrix. Three random
    samples of 2,000 clients give the number of clusters, by the mean of their loss curves, and
    three sets of medoids; the one that serves a sample of 4,000 best is improved there, and every
    client goes to the nearest medoid.

    Parameters
    ----------
    sketches : array of shape (K, p), float32 or float64
        One row per client.
    budget : int
        The largest number of clusters, from 1 to K.
    min_clusters : int
        The smallest number of clusters, from 1 to `budget`.
    rng : numpy.random.Generator
        Draws the samples of a large pool; not used for a small one.
    backend : "onebatch" or "sklearn-extra"
        The k-medoids library.
    threshold : int
        The largest pool that is clustered through its pair matrix, at least 1.

    Returns
    -------
    Clustering

    Raises
    ------
    ValueError, TypeError
        If an argument is not as described; a NaN or an infinity in a sketch is named by its row.
    ImportError
        If the k-medoids library cannot be loaded.
    """
    sketches = as_sketches(sketches)
    clients = len(sketches)
    budget = as_budget(budget, clients)
    min_clusters = as_count(min_clusters, "min_clusters")
    if min_clusters > budget:
        raise ValueError(f"min_clusters: got {min_clusters}, must be at most the budget {budget}")
    check_backend(backend)
    threshold = as_count(threshold, "threshold")
    reject_non_finite(sketches)
    if clients <= threshold:
        rows = [np.arange(clients)]
    else:
        size = min(clients, max(_SAMPLE, budget))
        rows = [rng.choice(clients, size, replace=False) for _ in range(_SAMPLES)]
    paths = [_medoid_path(sketches[sample], min_clusters, budget, backend) for sample in rows]
    losses = np.mean([path.losses for path in paths], axis=0) * (clients / len(rows[0]))
    chosen = elbow(losses)
    sets = [sample[path.medoids[chosen]] for sample, path in zip(rows, paths, strict=True)]
    medoids = sets[0] if clients <= threshold else _refine(sketches, sets, rng, backend)
    return Clustering(labels=_assign(sketches, medoids), medoids=medoids, losses=losses)


def elbow(losses: ArrayLike) -> int:
    """Return the index at which a loss curve lies furthest below the chord between its ends.

    A constant added to every score adds an amount linear in the number of clusters to the curve and
    to the chord alike, so it cannot move the elbow. A curve nowhere below its chord has none: 0.

    Parameters
    ----------
    losses : array of shape (n,)
        The loss for n consecutive numbers of clusters.

    Returns
    -------
    int

    Raises
    ------
    ValueError
        If there is no loss, or one is not finite.
    """
    curve = np.asarray(losses, dtype=np.float64)
    if curve.ndim != 1 or not len(curve) or not np.isfinite(curve).all():
        raise ValueError("losses: must be at least one finite number, in one dimension")
    depth = np.linspace(curve[0], curve[-1], len(curve)) - curve
    index = int(depth.argmax())
    # Rounding puts a straight line some 1e-16 of its height below its chord.
    return index if depth[index] > 1e-9 * np.abs(curve).max() else 0


@dataclass(frozen=True)
class _Path:
    """Medoids and loss for each number of clusters searched."""

    medoids: list[NDArray[np.int64]]
    losses: list[float]


def _medoid_path(
    sketches: FloatArray, min_clusters: int, max_clusters: int, backend: Backend
) -> _Path:
    distances, unit = _dissimilarity(sketches)
    medoids = np.zeros(1, dtype=np.int64)
    path = _Path([], [])
    for count in range(1, max_clusters + 1):
        if count > 1:
            nearest = distances[medoids].min(axis=0)
            gains = np.maximum(nearest - distances, 0).sum(axis=1)
            gains[medoids] = -1
            medoids = np.append(medoids, gains.argmax())
        if count == 1 or count >= min_clusters:
            medoids = _fit(distances, medoids, backend)
        if count < min_clusters:
            continue
        path.medoids.append(medoids)
        path.losses.append(unit * distances[medoids].min(axis=0).sum(dtype=np.float64))
    return path


def _dissimilarity(sketches: FloatArray) -> tuple[NDArray[np.float32], float]:
    """Return S - min S with a zero diagonal, divided by its maximum, and that maximum."""
    matrix = sckm_matrix(sketches)
    np.fill_diagonal(matrix, np.inf)
    matrix -= matrix.min() if len(matrix) > 1 else 0
    np.fill_diagonal(matrix, 0)
    unit = matrix.max()
    if unit > 0:
        matrix /= unit
    return matrix.astype(np.float32), float(unit)


def _refine(
    sketches: FloatArray,
    sets: list[NDArray[np.int64]],
    rng: np.random.Generator,
    backend: Backend,
) -> NDArray[np.int64]:
    """Return the best of several sets of medoids, improved on a sample of twice the size."""
    clients = len(sketches)
    sample = rng.choice(clients, min(clients, 2 * _SAMPLE), replace=False)
    rows = np.union1d(sample, np.concatenate(sets))
    distances, _ = _dissimilarity(sketches[rows])
    starts = [np.searchsorted(rows, medoids) for medoids in sets]
    best = min(starts, key=lambda start: distances[start].min(axis=0).sum(dtype=np.float64))
    return rows[_fit(distances, best, backend)]


def _fit(
    distances: NDArray[np.float32], start: NDArray[np.int64], backend: Backend
) -> NDArray[np.int64]:
    if len(start) == 1:
        return np.array([distances.sum(axis=0, dtype=np.float64).argmin()])
    if len(start) == len(distances):
        return start
    return improve_medoids(distances, start, backend)


def _assign(sketches: FloatArray, medoids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of every row's nearest medoid."""
    clients, entries = sketches.shape
    g = sketches[medoids].astype(np.float64)
    square = np.square(g)

    def nearest(part: slice) -> NDArray[np.int64]:
        labels = []
        for cut in row_blocks(part.stop - part.start, entries):
            block = sketches[part][cut].astype(np.float64)
            score = block @ square.T
            score += np.square(block, out=block) @ g.T
            labels.append(score.argmin(axis=1))
        return np.concatenate(labels)

    labels = np.concatenate(map_rows(nearest, clients, entries))
    # A medoid is in its own cluster, whatever its SCKM with itself and others.
    labels[medoids] = np.arange(len(medoids))
    return labels


def apportion(sizes: Sequence[int] | NDArray[np.int64], budget: int) -> NDArray[np.int64]:
    """Share `budget` among clusters in proportion to their sizes, by largest remainders.

    Departure: Algorithm 2 of the SCKM paper gives a cluster ceil(B |c| / K) clients and promises
    exactly B in all, which that formula exceeds unless it rounds nothing. Here each cluster gets
    the floor, and the places left go to the largest remainders, ties to the lower index. No cluster
    gets more than it has; a small one may get none.

    Parameters
    ----------
    sizes : sequence of C int
        Clients in each cluster, at least 0.
    budget : int
        Clients in all, from 1 to the sum of `sizes`.

    Returns
    -------
    array of shape (C,), int64
        Sums to exactly `budget`.

    Raises
    ------
    ValueError, TypeError
        If an argument is not as described.
    """
    counts = np.asarray(sizes)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts < 0).any():
        raise ValueError("sizes: expected a list of integers of at least 0")
    counts = counts.astype(np.int64)
    clients = int(counts.sum())
    budget = as_budget(budget, clients)
    shares, remainders = np.divmod(budget * counts, clients)
    first = np.argsort(-remainders, kind="stable")[: budget - shares.sum()]
    shares[first] += 1
    return shares


def select_sckm_cluster(
    sketches: ArrayLike,
    budget: int,
    *,
    min_clusters: int = 1,
    rng: np.random.Generator,
    age: ArrayLike | None = None,
    age_weight: float = 0.0,
    backend: Backend = "onebatch",
    threshold: int = _SAMPLE,
) -> NDArray[np.int64]:
    """Pick exactly `budget` clients, Algorithm 2 of the SCKM paper.

    `cluster_sckm`, then SCKM-Select inside each cluster for the share `apportion` gives it. With
    one cluster it is `select_sckm`. Departures are those of the functions named.

    Parameters
    ----------
    sketches : array of shape (K, p), float32 or float64
        One row per client.
    budget : int
        How many clients to pick, from 1 to K.
    min_clusters, rng, backend, threshold
        As for `cluster_sckm`.
    age : array of shape (K,), optional
        Rounds since each client was last selected, at least 0.
    age_weight : float
        As for `select_sckm`, the rank being the one within the cluster.

    Returns
    -------
    array of shape (budget,), int64
        Rows, best first: by the score within the cluster, ties by larger age, then lower row.

    Raises
    ------
    ValueError, TypeError
        If an argument is not as described; a NaN or an infinity in a sketch is named by its row.
    ImportError
        If the k-medoids library cannot be loaded.
    """
    sketches = as_sketches(sketches)
    ages = as_age(age, len(sketches))
    weight = as_weight(age_weight, "age_weight")
    clustering = cluster_sckm(
        sketches,
        budget,
        min_clusters=min_clusters,
        rng=rng,
        backend=backend,
        threshold=threshold,
    )
    return pick_from_clusters(sketches, clustering.labels, budget, ages, age_weight=weight)[0]


def pick_from_clusters(
    sketches: FloatArray,
    labels: NDArray[np.int64],
    budget: int,
    age: NDArray[np.float64],
    *,
    age_weight: float,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the rows SCKM-Select picks inside each cluster, best first, and every row's score."""
    sizes = np.bincount(labels)
    scores = np.empty(len(labels))
    picked = []
    for cluster, share in enumerate(apportion(sizes, budget)):
        rows = np.flatnonzero(labels == cluster)
        values = group_scores(sketches, rows)
        if age_weight > 0.0:
            turn = len(labels) / budget
            values = rank_by_age(values, age[rows], turn, age_weight=age_weight)
        scores[rows] = values
        picked.append(rows[top_rows(values, age[rows], share)])
    chosen = np.sort(np.concatenate(picked))
    return chosen[top_rows(scores[chosen], age[chosen], budget)], scores
