"""DivFL: a cohort close to every client, by facility location."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strategies.selection._validation import as_budget
from strategies.selection.baselines._checks import as_points
from strategies.selection.types import FloatArray

__all__ = ["select_divfl"]

# Rows whose gains are refreshed at once. One at a time is bound by the loop, all by the arithmetic.
_BATCH = 32


def select_divfl(
    sketches: FloatArray,
    budget: int,
    *,
    epsilon: float | None = None,
    rng: np.random.Generator | None = None,
) -> NDArray[np.int64]:
    """Pick greedily the rows that leave every client nearest to a picked one.

    "Diverse client selection for federated learning via submodular maximization" (ICLR 2022), its
    facility-location objective: S minimises sum_i min_{j in S} ||g_i - g_j||_2, one row at a time.
    The first row is the client nearest to all. With `epsilon`, each step looks only at a random
    ceil(N / m ln(1 / epsilon)) of the rows left (stochastic greedy, "Lazier than lazy greedy", AAAI
    2015).

    Departure: the paper compares whole gradients, this compares sketches of the update. Ties go to
    the lower row; once nothing can improve (fewer distinct sketches than m) that rule alone picks.

    Parameters
    ----------
    sketches : array of shape (K, p), float32 or float64
    budget : int
        m, from 1 to K.
    epsilon : float, optional
        In (0, 1): stochastic greedy. None looks at every row.
    rng : numpy.random.Generator, optional
        Needed with `epsilon`.

    Returns
    -------
    array of shape (m,), int64
        In the order picked.

    Raises
    ------
    TypeError, ValueError
        If `budget` is not an integer in range, a sketch is not finite, `epsilon` is outside (0, 1)
        or comes without `rng`.
    """
    points = as_points(sketches)
    as_budget(budget, len(points))
    if epsilon is None:
        return _greedy(_distances(points), budget)
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon must be between 0 and 1, got {epsilon!r}")
    if rng is None:
        raise ValueError("epsilon needs rng, a random generator")
    return _stochastic(_distances(points), budget, epsilon, rng)


def _distances(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Euclidean distances of all pairs, (K, p) -> (K, K)."""
    centred = points - points.mean(axis=0)  # what clients share would only cancel, with rounding
    scale = np.abs(centred).max()
    if scale == 0:
        return np.zeros((len(points), len(points)))
    centred /= scale  # squares of very small or very large entries leave the range
    squares = np.einsum("kp,kp->k", centred, centred)
    distances: NDArray[np.float64] = centred @ centred.T
    distances *= -2
    distances += squares
    distances += squares[:, None]
    # Between equal rows rounding leaves some 1e-16 of the squares, of which the root is 1e-8.
    floor = 8 * np.finfo(np.float64).eps * centred.shape[1] ** 0.5
    distances[distances < floor * np.maximum(squares, squares[:, None])] = 0
    np.sqrt(distances, out=distances)
    np.fill_diagonal(distances, 0)
    return distances


def _greedy(distances: NDArray[np.float64], budget: int) -> NDArray[np.int64]:
    """Lazy greedy: gains only shrink, so an old gain bounds today's from above."""
    totals = distances.sum(axis=0)
    rows = [int(np.argmin(totals))]
    nearest = distances[rows[0]].copy()
    bounds = np.full(len(distances), np.inf)
    bounds[rows[0]] = -np.inf
    while len(rows) < budget:
        fresh = np.zeros(len(distances), dtype=bool)
        while True:
            best = int(np.argmax(bounds))
            if fresh[best]:
                break
            stale = np.flatnonzero(~fresh & (bounds > -np.inf))
            if stale.size > _BATCH:
                stale = stale[np.argpartition(-bounds[stale], _BATCH)[:_BATCH]]
            bounds[stale] = np.maximum(nearest - distances[stale], 0).sum(axis=1)
            fresh[stale] = True
        rows.append(best)
        bounds[best] = -np.inf
        np.minimum(nearest, distances[best], out=nearest)
    return np.array(rows, dtype=np.int64)


def _stochastic(
    distances: NDArray[np.float64], budget: int, epsilon: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    clients = len(distances)
    size = int(np.ceil(clients / budget * np.log(1 / epsilon)))
    nearest = np.full(clients, np.inf)
    left = np.arange(clients)
    rows = []
    for _ in range(budget):
        subset = np.sort(rng.choice(left, size=min(size, left.size), replace=False))
        cost = np.minimum(distances[subset], nearest).sum(axis=1)
        best = int(subset[np.argmin(cost)])
        rows.append(best)
        left = left[left != best]
        np.minimum(nearest, distances[best], out=nearest)
    return np.array(rows, dtype=np.int64)
