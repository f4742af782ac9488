"""Power-of-choice: the largest losses among a few candidates."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.selection._validation import as_budget
from strategies.selection.baselines._checks import as_vector
from strategies.selection.baselines.sampling import draw_without_replacement, largest

__all__ = ["draw_candidates", "select_power_of_choice"]


def draw_candidates(
    examples: ArrayLike, candidates: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw the d clients that are asked for their loss.

    "Towards understanding biased client selection in federated learning" (AISTATS 2022), step 1 of
    pi_pow-d: d rows without replacement, each draw with probability proportional to the client's
    examples (p_k = n_k / n). Uniform candidates, common in public code, would weigh a client of ten
    examples like one of ten thousand.

    Parameters
    ----------
    examples : array of shape (K,)
        Training examples of each client.
    candidates : int
        d, from 1 to K.
    rng : numpy.random.Generator

    Returns
    -------
    array of shape (d,), int64
        Rows in the order drawn.

    Raises
    ------
    TypeError, ValueError
        If `candidates` is not an integer in range or a count is negative or NaN.
    """
    counts = as_vector(examples, "examples", least=0)
    as_budget(candidates, counts.size, "candidates")
    with np.errstate(divide="ignore"):
        return draw_without_replacement(np.log(counts), candidates, rng)


def select_power_of_choice(
    losses: ArrayLike, budget: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Pick the `budget` candidates with the largest loss, ties in random order.

    Steps 2 and 3 of pi_pow-d. The losses are those of the global model before any local step: over
    all of a client's examples, over one mini-batch (cpow-d), or the last one it reported, infinite
    if there is none (rpow-d).

    Parameters
    ----------
    losses : array of shape (d,)
        One per candidate. Infinity is allowed.
    budget : int
        m, from 1 to d.
    rng : numpy.random.Generator
        Breaks ties.

    Returns
    -------
    array of shape (m,), int64
        Rows of `losses`, largest first.

    Raises
    ------
    TypeError, ValueError
        If `budget` is not an integer in range or a loss is NaN.
    """
    values = as_vector(losses, "losses")
    as_budget(budget, values.size)
    return largest(values, budget, rng)
