"""Cosine diversity."""

from __future__ import annotations

import numpy as np

from strategies.selection.baselines import select_cosine_diversity
from strategies.selection.types import Candidates, Selection
from strategies.two_phase import TwoPhaseStrategy

__all__ = ["CosineDiversity"]


class CosineDiversity(TwoPhaseStrategy):
    """Adds the client that points away most from those picked, the SCKM paper's "max-diversity".

    The paper leaves the rule open; `select_cosine_diversity` says what is done here.
    """

    def needs(self, server_round: int) -> frozenset[str]:
        """Return the sketch."""
        return frozenset({"sketch"})

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Pick greedily; nothing is random."""
        return Selection(select_cosine_diversity(candidates.sketches, budget))
