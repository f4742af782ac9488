"""Optimal client sampling, by the norm of the updates."""

from __future__ import annotations

from typing import Unpack

import numpy as np

from strategies.options import Options
from strategies.selection.baselines import sample_ocs, select_ocs
from strategies.selection.types import Candidates, Selection
from strategies.two_phase import TwoPhaseStrategy

__all__ = ["OCS"]


class OCS(TwoPhaseStrategy):
    """Trains the clients with the largest updates, or includes each with its best probability.

    "Optimal client sampling for federated learning" (TMLR 2022). By default the variant of the ADCS
    paper, its departure: the m largest norms. The norms are those of the whole update, one number
    a client.

    Parameters
    ----------
    probabilistic : bool
        The original: independent inclusion with the optimal probabilities and the re-weighted,
        unbiased aggregate. The cohort's size is random with mean `clients_per_round` and may be 0,
        in which case the round is skipped.
    **options
        As for `TwoPhaseStrategy`.
    """

    def __init__(self, *, probabilistic: bool = False, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.probabilistic = probabilistic

    def needs(self, server_round: int) -> frozenset[str]:
        """Return the norm."""
        return frozenset({"norm"})

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Pick the largest norms, or draw each client by itself."""
        norms = candidates.norms
        if not self.probabilistic:
            return Selection(select_ocs(norms, budget), scores=norms)
        weights = candidates.examples if self.by_examples else np.ones(len(candidates))
        rows, coefficients = sample_ocs(norms, weights, budget, rng)
        return Selection(rows, scores=norms, coefficients=coefficients)
