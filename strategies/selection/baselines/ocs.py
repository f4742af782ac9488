"""Optimal client sampling: probabilities by update norm, or simply the largest norms."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.selection._validation import as_budget
from strategies.selection.baselines._checks import as_vector

__all__ = ["ocs_probabilities", "sample_ocs", "select_ocs"]


def ocs_probabilities(importance: ArrayLike, budget: int) -> NDArray[np.float64]:
    """Return the inclusion probabilities of least variance whose sum is `budget`.

    "Optimal client sampling for federated learning" (TMLR 2022), optimal probabilities: with u
    ascending and l the largest index such that 0 < m + l - N <= sum_{i<=l} u_i / u_l,
    p_i = (m + l - N) u_i / sum_{j<=l} u_j for the l smallest and 1 for the rest.

    Departure: the paper leaves u_l = 0 undefined. A client whose update is zero has probability
    zero, and if no more than m updates are not zero, those are certain and the sum is their number.
    If all are zero nothing distinguishes the clients and each has m / N.

    Parameters
    ----------
    importance : array of shape (K,)
        u_i = w_i ||U_i||, the aggregation weight times the norm of the full update.
    budget : int
        m, the expected number of clients, from 1 to K.

    Returns
    -------
    array of shape (K,), float64

    Raises
    ------
    TypeError, ValueError
        If `budget` is not an integer in range or an importance is negative, NaN or infinite.
    """
    u = as_vector(importance, "importance", least=0)
    if not np.isfinite(u).all():
        raise ValueError(f"importance must be finite, row {int(np.argmax(u))} is not")
    as_budget(budget, u.size)
    if not u.any():
        return np.full(u.size, budget / u.size)
    positive = u > 0
    if int(positive.sum()) <= budget:
        return positive.astype(np.float64)
    order = np.argsort(u, kind="stable")
    ascending = u[order] / u.max()
    sums = np.cumsum(ascending)
    slots = budget + np.arange(1, u.size + 1) - u.size
    # Compared as a product: u_l may be zero, but never where a slot is left (see the early return).
    fits = (slots > 0) & (slots * ascending <= sums)
    last = int(np.flatnonzero(fits)[-1])
    probabilities = np.ones(u.size)
    probabilities[order[: last + 1]] = slots[last] * ascending[: last + 1] / sums[last]
    return np.minimum(probabilities, 1.0)


def select_ocs(norms: ArrayLike, budget: int) -> NDArray[np.int64]:
    """Pick the `budget` largest update norms, ties by lower row.

    The ADCS paper's variant ("modified from probabilistic setting"): no randomness, no
    re-weighting.

    Parameters
    ----------
    norms : array of shape (K,)
        Norm of each client's full update; a sketch's norm would only estimate it.
    budget : int
        m, from 1 to K.

    Returns
    -------
    array of shape (m,), int64
        Largest first.

    Raises
    ------
    TypeError, ValueError
        If `budget` is not an integer in range or a norm is negative or NaN.
    """
    values = as_vector(norms, "norms", least=0)
    as_budget(budget, values.size)
    return np.argsort(-values, kind="stable")[:budget].astype(np.int64)


def sample_ocs(
    norms: ArrayLike, weights: ArrayLike, budget: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Include each client independently and return what its update is multiplied by.

    The probabilistic original, same paper: client i is in with probability p_i and the aggregate is
    sum_S (w_i / p_i) U_i, whose expectation is the full sum.

    Parameters
    ----------
    norms : array of shape (K,)
        Norm of each client's full update.
    weights : array of shape (K,)
        w_i, the aggregation weights; they are divided by their sum.
    budget : int
        m, the expected number of clients, from 1 to K.
    rng : numpy.random.Generator

    Returns
    -------
    rows : array of shape (|S|,), int64
        Ascending. The size is random: it may exceed the budget and it may be 0.
    coefficients : array of shape (|S|,), float64
        w_i / p_i of those rows.

    Raises
    ------
    TypeError, ValueError
        As `ocs_probabilities`, or if the weights are all zero.
    """
    sizes = as_vector(norms, "norms", least=0)
    shares = as_vector(weights, "weights", size=sizes.size, least=0)
    if not shares.any():
        raise ValueError("weights must not all be zero")
    shares = shares / shares.sum()
    probabilities = ocs_probabilities(shares * sizes, budget)
    rows = np.flatnonzero(rng.random(sizes.size) < probabilities).astype(np.int64)
    return rows, shares[rows] / probabilities[rows]
