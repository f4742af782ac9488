"""Static DPP: the most diverse cohort, chosen once."""

from __future__ import annotations

import numpy as np

from strategies.selection.adcs import select_adcs
from strategies.selection.types import Candidates, Selection
from strategies.two_phase import TwoPhaseStrategy

__all__ = ["StaticDPP"]


class StaticDPP(TwoPhaseStrategy):
    """Builds the ADCS kernel with theta = 0 once and trains the same clients ever after.

    The ADCS paper's "StaticDPP". The only roll call is that of the first round. Departure: the
    kernel is built on sketches (see `select_adcs`). A member that is away is not replaced: its
    cohort is smaller until it is back.
    """

    def needs(self, server_round: int) -> frozenset[str]:
        """Return the sketch until the cohort stands."""
        return frozenset() if self.state else frozenset({"sketch"})

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Pick the cohort, or find it again."""
        if not self.state:
            alike = np.ones(len(candidates))
            rows = select_adcs(candidates.sketches, alike, 0.0, budget, age=candidates.ages)
            self.state = {"cohort": [candidates.names[row] for row in rows]}
            return Selection(rows)
        row_of = {name: row for row, name in enumerate(candidates.names)}
        present = [row_of[name] for name in self.state["cohort"] if name in row_of]
        return Selection(np.array(present, dtype=np.int64))
