"""Reading per-client memories, kept by name, in the order of the candidates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from strategies.selection.types import Candidates

__all__ = ["recall"]


def recall(
    memory: Mapping[str, float], candidates: Candidates, *, unseen: float, failed: float
) -> NDArray[np.float64]:
    """Return what is remembered of each candidate, shape (K,), float64.

    A client without an entry counts as `unseen` if it was never selected and as `failed` if it was
    and never answered. A method that tries newcomers first would otherwise pick a broken client
    again in every round.
    """
    newcomers = candidates.ages >= candidates.round
    default = np.where(newcomers, unseen, failed)
    values = [memory.get(name, default[row]) for row, name in enumerate(candidates.names)]
    return np.array(values, dtype=np.float64)
