"""Uniform selection."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strategies.selection._validation import as_budget

__all__ = ["select_uniform"]


def select_uniform(clients: int, budget: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw `budget` of `clients` rows without replacement, each cohort equally likely.

    FedAvg's rule: "Communication-efficient learning of deep networks from decentralized data"
    (AISTATS 2017), Algorithm 1.

    Returns
    -------
    array of shape (budget,), int64

    Raises
    ------
    TypeError, ValueError
        If `budget` is not an integer from 1 to `clients`.
    """
    as_budget(budget, clients)
    return rng.choice(clients, size=budget, replace=False).astype(np.int64)
