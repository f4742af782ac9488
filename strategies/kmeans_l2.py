"""K-means on the sketches."""

from __future__ import annotations

import numpy as np

from strategies.selection.baselines import select_kmeans_l2
from strategies.selection.types import Candidates, Selection
from strategies.two_phase import TwoPhaseStrategy

__all__ = ["KMeansL2"]


class KMeansL2(TwoPhaseStrategy):
    """Trains the client nearest each of m Euclidean cluster centres, the SCKM paper's "Kmeans_L2".

    The paper does not define it and there is no other canonical source; `select_kmeans_l2` says
    what is done here.
    """

    def needs(self, server_round: int) -> frozenset[str]:
        """Return the sketch."""
        return frozenset({"sketch"})

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Pick one client per cluster."""
        return Selection(select_kmeans_l2(candidates.sketches, budget, rng=rng))
