"""Uniform client sampling, as in FedAvg."""

from __future__ import annotations

import numpy as np

from strategies.selection.baselines import select_uniform
from strategies.selection.types import Candidates, Selection
from strategies.two_phase import TwoPhaseStrategy

__all__ = ["Uniform"]


class Uniform(TwoPhaseStrategy):
    """Draws the cohort uniformly without replacement (McMahan et al., 2017). No roll call."""

    def needs(self, server_round: int) -> frozenset[str]:
        """Return nothing: there is no roll call."""
        return frozenset()

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Draw `budget` clients."""
        return Selection(select_uniform(len(candidates), budget, rng))
