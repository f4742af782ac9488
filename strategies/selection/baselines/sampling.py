"""Draws that several selectors share: weighted without replacement, and best with random ties."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.selection._validation import as_budget
from strategies.selection.baselines._checks import as_vector

__all__ = ["draw_without_replacement", "largest"]


def draw_without_replacement(
    log_weights: ArrayLike, size: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw rows one after another, each with probability proportional to its weight.

    A drawn row leaves the urn and the weights of the rest are normalised anew. The `size` largest
    of `log_weights + Gumbel noise`, in order, have exactly that law ("Weighted random
    sampling with a reservoir", 2006); in logarithms no weight overflows.

    Parameters
    ----------
    log_weights : array of shape (K,)
        Natural logarithms of the weights. Rows at minus infinity come last, in random order.
    size : int
        How many rows to draw, from 0 to K.
    rng : numpy.random.Generator
        Source of the K exponential variates, and of the order of weightless rows.

    Returns
    -------
    array of shape (size,), int64
        Rows in the order drawn.

    Raises
    ------
    TypeError, ValueError
        If `size` is not an integer in range, or a weight is NaN or plus infinity.
    """
    logs = np.asarray(log_weights, dtype=np.float64)
    if logs.ndim != 1 or not np.all(logs < np.inf):
        raise ValueError("log_weights must be a vector of numbers below infinity")
    if size == 0:
        return np.empty(0, dtype=np.int64)
    as_budget(size, logs.size, "size")
    # Minus the logarithm of an exponential variate is Gumbel noise.
    keys = logs - np.log(rng.standard_exponential(logs.size))
    return np.lexsort((rng.random(logs.size), -keys))[:size].astype(np.int64)


def largest(scores: ArrayLike, budget: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the rows of the `budget` largest scores, best first, ties in random order.

    Parameters
    ----------
    scores : array of shape (K,)
        Infinity is allowed, and ties with itself.
    budget : int
        How many rows, from 1 to K.
    rng : numpy.random.Generator
        Breaks the ties.

    Returns
    -------
    array of shape (budget,), int64

    Raises
    ------
    TypeError, ValueError
        If `budget` is not an integer in range or a score is NaN or minus infinity.
    """
    values = as_vector(scores, "scores")
    as_budget(budget, values.size)
    return np.lexsort((rng.random(values.size), -values))[:budget].astype(np.int64)
