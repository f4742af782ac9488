"""K-means on the sketches: one client from each Euclidean cluster."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from strategies.selection._validation import as_budget
from strategies.selection.baselines._checks import as_points
from strategies.selection.types import FloatArray

__all__ = ["select_kmeans_l2"]


def select_kmeans_l2(
    sketches: FloatArray, budget: int, *, rng: np.random.Generator, restarts: int = 10
) -> NDArray[np.int64]:
    """Cluster the sketches into `budget` groups and pick the client nearest each centre.

    The SCKM paper compares with "Kmeans_L2" and does not define it; no other source is canonical.
    Here: scikit-learn's `KMeans`, best of `restarts` seeded k-means++ starts; in each cluster its
    member nearest the centre, ties by lower row. Where there are fewer distinct sketches than
    clusters, an empty cluster is filled by the client farthest from its centre among those not
    picked.

    Parameters
    ----------
    sketches : array of shape (K, p), float32 or float64
    budget : int
        m, the number of clusters, from 1 to K.
    rng : numpy.random.Generator
        Seeds the starts.
    restarts : int
        scikit-learn's `n_init`.

    Returns
    -------
    array of shape (m,), int64
        The client of the largest cluster first; fillers last.

    Raises
    ------
    TypeError, ValueError
        If `budget` is not an integer in range or a sketch is not finite.
    """
    # Late: it takes a second, and every client that imports this package would wait for it.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    points = as_points(sketches).astype(np.asarray(sketches).dtype, copy=False)
    as_budget(budget, len(points))
    scale = np.abs(points).max()
    if scale > 0:
        points = points / scale  # squares of very small or very large entries leave the range
    # Several threads wait longer for one another than they work.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter(
            "ignore", ConvergenceWarning
        )  # fewer distinct sketches: handled below
        starts = iter(points[_starts(points, budget, restarts, rng)])
        kmeans = KMeans(budget, n_init=restarts, init=lambda x, k, random_state: next(starts))
        labels = kmeans.fit_predict(points)
    distances = np.linalg.norm(points - kmeans.cluster_centers_[labels], axis=1)

    order = np.lexsort((distances, labels))
    present, first, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    picked = order[first][np.argsort(-sizes, kind="stable")]
    rest = np.setdiff1d(np.arange(len(points)), picked)
    fillers = rest[np.argsort(-distances[rest], kind="stable")][: budget - len(present)]
    return np.concatenate([picked, fillers]).astype(np.int64)


def _starts(
    points: FloatArray, clusters: int, restarts: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return rows to start from, (restarts, clusters): greedy k-means++ as scikit-learn's.

    All restarts side by side, one matrix product a centre. scikit-learn seeds one after the other,
    in small float64 chunks, which takes three times as long as the clustering itself.
    """
    trials = 2 + int(np.log(clusters))
    square = np.einsum("ij,ij->i", points, points)

    def distances(rows: NDArray[np.int64]) -> FloatArray:
        products = (points[rows.ravel()] @ points.T).reshape(*rows.shape, -1)
        squared: FloatArray = np.maximum(square[rows][..., None] + square - 2 * products, 0)
        return squared

    chosen = rng.integers(len(points), size=(restarts, 1))
    nearest = distances(chosen)[:, 0]
    for _ in range(1, clusters):
        reach = np.cumsum(nearest, axis=1, dtype=np.float64)
        drawn = rng.random((restarts, trials)) * reach[:, -1:]
        tried = np.array([np.searchsorted(*pair) for pair in zip(reach, drawn, strict=True)])
        tried = np.minimum(tried, len(points) - 1)
        nearer = np.minimum(nearest[:, None], distances(tried))
        best = nearer.sum(axis=2).argmin(axis=1)[:, None]
        nearest = np.take_along_axis(nearer, best[..., None], axis=1)[:, 0]
        chosen = np.hstack([chosen, np.take_along_axis(tried, best, axis=1)])
    return chosen
