"""Round-robin selection, also known as age of gradient."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.selection._validation import as_budget
from strategies.selection.baselines._checks import as_vector

__all__ = ["select_round_robin"]


def select_round_robin(ages: ArrayLike, budget: int) -> NDArray[np.int64]:
    """Pick the `budget` clients that waited longest.

    Ties go by rows, cyclically: from where those that waited longest begin. Taken from row 0, the
    first rows would be picked in every round where more than half of the clients are.

    Parameters
    ----------
    ages : array of shape (K,)
        Rounds since each client was last selected.
    budget : int
        How many rows, from 1 to K.

    Returns
    -------
    array of shape (budget,), int64
        Longest wait first.

    Raises
    ------
    TypeError, ValueError
        If `budget` is not an integer in range or an age is negative or NaN.
    """
    waits = as_vector(ages, "ages", least=0)
    as_budget(budget, waits.size)
    longest = waits == waits.max()
    start = int(np.argmax(longest & ~np.roll(longest, 1)))
    turns = np.roll(np.arange(waits.size), -start)
    return turns[np.argsort(-waits[turns], kind="stable")[:budget]]
