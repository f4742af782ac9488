"""FedCS: the fastest clients that fit before a deadline."""

from __future__ import annotations

from typing import Unpack

import numpy as np

from strategies.options import Options
from strategies.selection.baselines import select_fedcs
from strategies.selection.types import Candidates, Selection
from strategies.two_phase import TwoPhaseStrategy

__all__ = ["FedCS"]


class FedCS(TwoPhaseStrategy):
    """Adds the client that lengthens the round least, until the cohort is full or time is up.

    "Client selection for federated learning with heterogeneous resources in mobile edge" (ICC
    2019), Algorithm 3; the departures are those of `select_fedcs`. No roll call: times are the
    reply times measured here.

    Parameters
    ----------
    round_seconds : float
        Longest round wanted, in seconds, above 0. The cohort is smaller where too few clients are
        fast enough. `deadline`, by contrast, is when the server stops waiting.
    **options
        As for `TwoPhaseStrategy`.
    """

    def __init__(self, *, round_seconds: float = np.inf, **options: Unpack[Options]) -> None:
        if not round_seconds > 0:
            raise ValueError(f"round_seconds = {round_seconds}: must be above 0")
        super().__init__(**options)
        self.round_seconds = round_seconds

    def needs(self, server_round: int) -> frozenset[str]:
        """Return nothing: there is no roll call."""
        return frozenset()

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Pick the fastest."""
        rows = select_fedcs(candidates.seconds, budget, rng, deadline=self.round_seconds)
        return Selection(rows, scores=-np.nan_to_num(candidates.seconds))
