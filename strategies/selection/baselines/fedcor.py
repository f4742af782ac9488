"""FedCor: a Gaussian process over the clients' loss changes, and greedy picks from it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.selection._validation import as_budget
from strategies.selection.baselines._checks import as_vector

__all__ = ["fit_fedcor", "select_fedcor"]


def fit_fedcor(
    changes: ArrayLike,
    ages: ArrayLike,
    *,
    dimension: int = 15,
    discount: float = 0.95,
    noise: float = 0.01,
) -> NDArray[np.float64]:
    """Fit the embedding X of the covariance X^T X + noise^2 I to past loss changes.

    "FedCor: correlation-based active client selection strategy for heterogeneous federated
    learning" (CVPR 2022), training of the process: X maximises the log marginal likelihood of the
    loss changes under a Gaussian of mean zero, each weighted by discount^age.

    Departure: the paper climbs with Adam (learning rate 0.01). With the noise fixed the likelihood
    is that of probabilistic principal components, whose maximum is known ("Probabilistic principal
    component analysis", 1999, Eq. 7): with lambda and V the leading eigenvalues and eigenvectors of
    the weighted second moment of the changes, X = sqrt(max(lambda - noise^2, 0)) V^T. It needs no
    optimiser, no learning rate and no start, and no X has a higher likelihood.

    Parameters
    ----------
    changes : array of shape (T, N)
        Loss after minus loss before, one row per round observed, one column per client.
    ages : array of shape (T,)
        Rounds since each row was observed.
    dimension : int
        Rows of X.
    discount : float
        gamma, in (0, 1].
    noise : float
        Standard deviation of the observation noise, above 0.

    Returns
    -------
    array of shape (dimension, N), float64
        Directions the data do not support are rows of zeros.

    Raises
    ------
    ValueError
        If a change is not finite, the shapes differ, or an option is out of range.
    """
    observed = np.asarray(changes, dtype=np.float64)
    if observed.ndim != 2 or 0 in observed.shape:
        raise ValueError(f"changes must have shape (T, N) with T, N > 0, got {observed.shape}")
    if not np.isfinite(observed).all():
        row = int(np.argmin(np.isfinite(observed).all(axis=1)))
        raise ValueError(f"changes must be finite, row {row} is not")
    waits = as_vector(ages, "ages", size=len(observed), least=0)
    if dimension < 1:
        raise ValueError(f"dimension must be at least 1, got {dimension!r}")
    if not 0 < discount <= 1:
        raise ValueError(f"discount must be above 0 and at most 1, got {discount!r}")
    if not noise > 0:
        raise ValueError(f"noise must be above 0, got {noise!r}")

    weights = discount ** (waits - waits.min())
    scaled = np.sqrt(weights / weights.sum())[:, None] * observed
    _, singular, directions = np.linalg.svd(scaled, full_matrices=False)
    kept = min(dimension, len(singular))
    embedding = np.zeros((dimension, observed.shape[1]))
    lengths = np.sqrt(np.maximum(singular[:kept] ** 2 - noise**2, 0))
    embedding[:kept] = lengths[:, None] * directions[:kept]
    return embedding


def select_fedcor(
    embedding: ArrayLike,
    weights: ArrayLike,
    discounts: ArrayLike,
    budget: int,
    *,
    noise: float = 0.01,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Pick greedily the clients whose loss tells most about everyone's.

    FedCor, greedy selection: with S = X^T X + noise^2 I, each step takes the row k that
    maximises alpha_k / sqrt(S_kk) sum_i p_i S_ik over the rows i and k left, then conditions S on
    it, S - S_:k S_k: / S_kk. Ties go to the lower row. S itself is never formed: a pick needs one
    column of it, and conditioning one vector, so m picks take O(N m (m + dimension)) time.

    Parameters
    ----------
    embedding : array of shape (dimension, K)
        X, of `fit_fedcor`.
    weights : array of shape (K,)
        p_k, in any unit; they are divided by their sum.
    discounts : array of shape (K,)
        alpha_k, above 0: 1, times beta for each pick since the last fit.
    budget : int
        m, from 1 to K.
    noise : float
        As in the fit.

    Returns
    -------
    rows : array of shape (m,), int64
        In the order picked.
    scores : array of shape (K,), float64
        The criterion of the first step.

    Raises
    ------
    TypeError, ValueError
        If `budget` is not an integer in range, shapes differ, or a value is out of range.
    """
    points = np.asarray(embedding, dtype=np.float64)
    if points.ndim != 2 or not np.isfinite(points).all():
        raise ValueError("embedding must be a matrix of finite numbers, one column per client")
    clients = points.shape[1]
    shares = as_vector(weights, "weights", size=clients, least=0)
    alphas = as_vector(discounts, "discounts", size=clients, least=0)
    as_budget(budget, clients)
    if not noise > 0:
        raise ValueError(f"noise must be above 0, got {noise!r}")
    shares = shares / (shares.sum() or 1.0)

    # Kept up to date at each pick: the diagonal of S, S p, and all v with S = S_0 - sum v v^T.
    diagonal = np.einsum("dk,dk->k", points, points) + noise**2
    reach = points.T @ (points @ shares) + noise**2 * shares
    removed = np.empty((budget, clients))
    left = np.ones(clients, dtype=bool)
    rows = np.empty(budget, dtype=np.int64)
    first = alphas * reach / np.sqrt(diagonal)
    criterion = first.copy()
    for step in range(budget):
        criterion[~left] = -np.inf
        best = int(np.argmax(criterion))
        rows[step], left[best] = best, False
        column = points.T @ points[:, best] - removed[:step, best] @ removed[:step]
        column[best] += noise**2
        vector = removed[step] = column / np.sqrt(diagonal[best])
        # Conditioning zeroes the picked row of S, so summing over all rows is over those left.
        reach -= vector * (vector @ shares)
        # What is left of a client is never less than its own noise.
        diagonal = np.maximum(diagonal - vector**2, noise**2)
        criterion = alphas * reach / np.sqrt(diagonal)
    return rows, first
