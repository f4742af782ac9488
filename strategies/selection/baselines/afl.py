"""Active federated learning: clients drawn by the exponential of their valuation."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.selection._validation import as_budget, as_fraction, as_weight
from strategies.selection.baselines._checks import as_vector
from strategies.selection.baselines.sampling import draw_without_replacement

__all__ = ["afl_valuations", "select_afl"]


def afl_valuations(losses: ArrayLike, examples: ArrayLike) -> NDArray[np.float64]:
    """Return sqrt(n_k) times the mean loss of each client.

    "Active federated learning" (arXiv 1909.12641), valuation: the loss is that of the global model
    before local training. Dividing by sqrt(n_k), as some public code does, would favour small
    clients.

    Parameters
    ----------
    losses : array of shape (K,)
        Mean loss over the client's examples.
    examples : array of shape (K,)
        n_k.

    Returns
    -------
    array of shape (K,), float64

    Raises
    ------
    ValueError
        If the shapes differ, a loss is NaN, or a count is negative or NaN.
    """
    means = as_vector(losses, "losses")
    counts = as_vector(examples, "examples", size=means.size, least=0)
    return np.sqrt(counts) * means


def select_afl(
    valuations: ArrayLike,
    budget: int,
    rng: np.random.Generator,
    *,
    alpha1: float = 0.75,
    alpha2: float = 0.01,
    alpha3: float = 0.1,
) -> NDArray[np.int64]:
    """Draw clients by softmax of their valuation, and the rest uniformly.

    Active federated learning, Algorithm 1: the floor(alpha1 N) lowest valuations are left out,
    floor((1 - alpha3) m) rows are drawn from the others without replacement with probability
    proportional to exp(alpha2 v), and the remaining places are filled uniformly from all rows not
    yet drawn, those left out among them.

    Departures: ties at the exclusion are broken at random; clients without a valuation count as the
    best one known, so that newcomers are tried (the paper does not say); if fewer clients are left
    than the softmax part wants, the uniform part takes its places, so m rows always come back.

    Parameters
    ----------
    valuations : array of shape (K,)
        NaN where a client has none yet.
    budget : int
        m, from 1 to K.
    rng : numpy.random.Generator
    alpha1, alpha2, alpha3 : float
        Share left out, softmax scale, and share drawn uniformly.

    Returns
    -------
    array of shape (m,), int64

    Raises
    ------
    TypeError, ValueError
        If `budget` is not an integer in range, a valuation is infinite, alpha1 or alpha3 is outside
        [0, 1], or alpha2 is negative.
    """
    values = as_vector(valuations, "valuations", unknown=True)
    as_budget(budget, values.size)
    as_fraction(alpha1, "alpha1")
    as_fraction(alpha3, "alpha3")
    as_weight(alpha2, "alpha2")
    if np.isposinf(values).any():
        raise ValueError(f"valuations must be finite, row {int(np.nanargmax(values))} is not")

    unknown = np.isnan(values)
    values = values.copy()
    values[unknown] = 0.0 if unknown.all() else values[~unknown].max()
    # A share such as 0.9 of 10 may come out just below a whole number.
    excluded = int(alpha1 * values.size + 1e-9)
    drawn = min(int((1 - alpha3) * budget + 1e-9), values.size - excluded)
    log_weights = alpha2 * values
    order = np.lexsort((rng.random(values.size), values))
    kept = np.sort(order[excluded:])
    first = kept[draw_without_replacement(log_weights[kept], drawn, rng)]
    rest = np.setdiff1d(np.arange(values.size), first)
    second = rng.permutation(rest)[: budget - drawn]
    return np.concatenate([first, second]).astype(np.int64)
