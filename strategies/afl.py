"""Active federated learning."""

from __future__ import annotations

from typing import Unpack

import numpy as np

from strategies.memory import recall
from strategies.options import Options
from strategies.record import Feedback
from strategies.selection.baselines import afl_valuations, select_afl
from strategies.selection.types import Candidates, Selection
from strategies.two_phase import TwoPhaseStrategy

__all__ = ["AFL"]


class AFL(TwoPhaseStrategy):
    """Draws clients by the softmax of their last valuation, sqrt(n_k) times the loss.

    "Active federated learning" (arXiv 1909.12641), Algorithm 1. A valuation is refreshed only when
    its client trains, from the loss before training. No roll call.

    Departures: those of `select_afl`; a client that was picked but never answered has valuation 0.

    Parameters
    ----------
    alpha1, alpha2, alpha3 : float
        Share of the lowest valuations left out, scale of the softmax, share drawn uniformly.
    **options
        As for `TwoPhaseStrategy`.
    """

    train_needs = frozenset({"loss"})

    def __init__(
        self,
        *,
        alpha1: float = 0.75,
        alpha2: float = 0.01,
        alpha3: float = 0.1,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.alpha1, self.alpha2, self.alpha3 = alpha1, alpha2, alpha3

    def needs(self, server_round: int) -> frozenset[str]:
        """Return nothing: there is no roll call."""
        return frozenset()

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Draw the cohort."""
        memory = self.state.get("valuations", {})
        values = recall(memory, candidates, unseen=np.nan, failed=0.0)
        rows = select_afl(
            values, budget, rng, alpha1=self.alpha1, alpha2=self.alpha2, alpha3=self.alpha3
        )
        return Selection(rows, scores=np.nan_to_num(values))

    def observe(self, feedback: Feedback) -> None:
        """Refresh the valuations of the clients that trained."""
        values = map(float, afl_valuations(feedback.losses, feedback.examples))
        self.state.setdefault("valuations", {}).update(zip(feedback.names, values, strict=True))
