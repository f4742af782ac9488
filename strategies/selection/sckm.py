"""SCKM-Select: rank clients by the symmetric co-skewness moment of their sketches."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.selection._blocks import map_rows
from strategies.selection._validation import (
    as_age,
    as_budget,
    as_sketches,
    as_weight,
    reject_non_finite,
)
from strategies.selection.types import FloatArray

__all__ = ["group_scores", "rank_by_age", "sckm_matrix", "sckm_scores", "select_sckm", "top_rows"]


def sckm_matrix(sketches: ArrayLike) -> NDArray[np.float64]:
    """Return the SCKM of every pair of clients, Eq. 8 of the SCKM paper.

    O(K² p) time and O(K²) memory: for small pools and for checking; `sckm_scores` needs no pair.

    Parameters
    ----------
    sketches : array of shape (K, p), float32 or float64
        One row per client.

    Returns
    -------
    array of shape (K, K), float64
        Symmetric. May be negative, and its diagonal, 2/p Σ g³, is not zero.

    Raises
    ------
    ValueError
        If a sketch holds a NaN or an infinity (the message names the row), is so large that its
        cube overflows, or the shape is wrong.
    TypeError
        If the entries are not real numbers.
    """
    sketches = as_sketches(sketches)
    reject_non_finite(sketches)
    g = sketches.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        product = g @ np.square(g).T
        matrix = product + product.T
    matrix /= sketches.shape[1]
    if not np.isfinite(matrix).all():
        raise ValueError(_TOO_LARGE)
    return matrix


def sckm_scores(sketches: ArrayLike) -> NDArray[np.float64]:
    """Return each client's mean SCKM with all others, Eq. 9 of the SCKM paper.

    Uses the column sums of g and g² instead of the pairs: O(K p) time, float64 throughout. Above
    2²⁰ entries in all, O(K + p) memory: two compiled passes read the sketches where they are.

    Parameters
    ----------
    sketches : array of shape (K, p), float32 or float64
        One row per client.

    Returns
    -------
    array of shape (K,), float64
        Larger is more complementary. With a single client, where Eq. 9 divides by zero, the
        score is 0.

    Raises
    ------
    ValueError
        If a sketch holds a NaN or an infinity (the message names the row), is so large that its
        cube overflows, or the shape is wrong.
    TypeError
        If the entries are not real numbers.
    """
    sketches = as_sketches(sketches)
    return group_scores(sketches)


# Up to here NumPy is done before Numba would have compiled, and its copies take 40 MB at most.
_SMALL_ENTRIES = 2**20
_TOO_LARGE = "sketches: entries are too large, their cubes overflow float64; rescale them"


def group_scores(
    sketches: FloatArray, rows: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """Return Eq. 9 among `rows` of the sketches (all by default)."""
    rows = np.arange(len(sketches)) if rows is None else rows
    small = sketches.size <= _SMALL_ENTRIES
    with np.errstate(over="ignore", invalid="ignore"):
        sums = _sums_of_few(sketches[rows]) if small else _sums_of_many(sketches, rows)
    # A NaN or an infinity anywhere reaches every score through the column sums.
    if not np.isfinite(sums).all():
        reject_non_finite(sketches)
        raise ValueError(_TOO_LARGE)
    sums /= max(1, len(rows) - 1) * sketches.shape[1]
    return sums


# A client's own terms are taken out of the column sums s1 of g and s2 of g² entry by entry:
# Σ g (s2 - g²) + g² (s1 - g), both ways.


def _sums_of_few(sketches: FloatArray) -> NDArray[np.float64]:
    g = sketches.astype(np.float64)
    square = np.square(g)
    others = g.sum(axis=0) - g
    others_square = square.sum(axis=0) - square
    sums: NDArray[np.float64] = np.einsum("ij,ij->i", g, others_square)
    sums += np.einsum("ij,ij->i", square, others)
    return sums


def _sums_of_many(sketches: FloatArray, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    from strategies.selection._compiled import add_moments, write_scores

    entries = sketches.shape[1]

    def moments(part: slice) -> NDArray[np.float64]:
        sums = np.zeros((2, entries))
        add_moments(sketches, rows[part], *sums)
        return sums

    total, squares = np.sum(map_rows(moments, len(rows), entries), axis=0)
    scores = np.empty(len(rows))
    map_rows(
        lambda part: write_scores(sketches, rows[part], total, squares, scores[part]),
        len(rows),
        entries,
    )
    return scores


def select_sckm(
    sketches: ArrayLike,
    budget: int,
    age: ArrayLike | None = None,
    *,
    age_weight: float = 0.0,
) -> NDArray[np.int64]:
    """Pick the `budget` clients with the largest score, Algorithm 1 of the SCKM paper.

    Departures: ties go to the client with the larger age, then to the lower row, where the paper
    leaves them to an age-of-gradient queue; a positive `age_weight` ranks by `rank_by_age`, a rule
    of this project.

    Parameters
    ----------
    sketches : array of shape (K, p), float32 or float64
        One row per client.
    budget : int
        How many clients to pick, from 1 to K.
    age : array of shape (K,), optional
        Rounds since each client was last selected, at least 0.
    age_weight : float
        0 is the paper's rule. 1 lets one full turn of the pool weigh as much as going from last
        to first.

    Returns
    -------
    array of shape (budget,), int64
        Rows, best first.

    Raises
    ------
    ValueError, TypeError
        If an argument is not as described.
    """
    scores = sckm_scores(sketches)
    budget = as_budget(budget, len(scores))
    ages = as_age(age, len(scores))
    weight = as_weight(age_weight, "age_weight")
    if weight > 0.0:
        scores = rank_by_age(scores, ages, len(scores) / budget, age_weight=weight)
    return top_rows(scores, ages, budget)


def rank_by_age(
    scores: NDArray[np.float64], age: NDArray[np.float64], turn: float, *, age_weight: float
) -> NDArray[np.float64]:
    """Mix the rank of a score with the rounds waited (this project's rule, in neither paper).

    The value is rank / (K - 1) + age_weight x age / turn: the rank runs from 0 for the smallest
    score to K - 1, and equal scores share their mean rank. Ranks, not scores,
    so that the mix does not depend on the scale of the gradients.

    Parameters
    ----------
    scores, age : arrays of shape (K,), float64
        A score per client, larger is better, and the rounds since it was last selected.
    turn : float
        Rounds in one full turn of the pool: K / budget.
    age_weight : float
        How much one full turn of waiting counts, in units of going from last to first.

    Returns
    -------
    array of shape (K,), float64
        Larger is better.
    """
    clients = len(scores)
    _, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1
    rank = (last - (counts - 1) / 2)[group]
    return rank / max(1, clients - 1) + age_weight * age / turn


def top_rows(
    scores: NDArray[np.float64], age: NDArray[np.float64], budget: int
) -> NDArray[np.int64]:
    """Return the `budget` rows of largest score; ties by larger age, then lower row."""
    return np.lexsort((-age, -scores))[:budget]
