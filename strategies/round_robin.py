"""Round-robin: whoever waited longest."""

from __future__ import annotations

import numpy as np

from strategies.selection.baselines import select_round_robin
from strategies.selection.types import Candidates, Selection
from strategies.two_phase import TwoPhaseStrategy

__all__ = ["RoundRobin"]


class RoundRobin(TwoPhaseStrategy):
    """Picks the clients that waited longest, ties in turn by name. No roll call.

    Shares are equal where the same clients are there in every round, else roughly so.
    Also known as selection by age of gradient. A serious baseline where each client holds one
    class: nobody is forgotten.
    """

    def needs(self, server_round: int) -> frozenset[str]:
        """Return nothing: there is no roll call."""
        return frozenset()

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Pick the `budget` clients of greatest age."""
        rows = select_round_robin(candidates.ages, budget)
        return Selection(rows, scores=candidates.ages.astype(np.float64))
