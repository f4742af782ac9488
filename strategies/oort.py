"""Oort: guided participant selection."""

from __future__ import annotations

from typing import Unpack

import numpy as np

from strategies.memory import recall
from strategies.options import Options
from strategies.record import Feedback
from strategies.selection.baselines import (
    oort_exploration,
    oort_pacer,
    oort_rewards,
    oort_scores,
    select_oort,
)
from strategies.selection.types import Candidates, Selection
from strategies.two_phase import TwoPhaseStrategy

__all__ = ["Oort"]


class Oort(TwoPhaseStrategy):
    """Draws clients by loss, staleness and speed, and explores clients never seen.

    "Oort: efficient federated learning via guided participant selection" (OSDI 2021), Algorithm 1.
    The reward comes from the squared losses of all examples a client trained on, before training;
    durations are the reply times measured here. No roll call.

    Departures: those of `oort_scores`, `oort_pacer` and `select_oort`; a client that was picked but
    never answered has reward 0; a client's last participation is when it was last picked.

    Parameters
    ----------
    exploration, exploration_decay, exploration_floor : float
        epsilon in the first round, its factor from round to round, its least value.
    clip : float
        Quantile at which rewards are clipped.
    cutoff : float
        c, share of the cut-off score that makes a client eligible.
    percentile, pacer_step : float
        Percentile of the durations that is preferred at first, and its growth (Delta).
    pacer_window : int
        Rounds between looks at it (W), at least 1.
    slowness_penalty : float
        alpha.
    **options
        As for `TwoPhaseStrategy`.
    """

    train_needs = frozenset({"loss-rms"})

    def __init__(
        self,
        *,
        exploration: float = 0.9,
        exploration_decay: float = 0.98,
        exploration_floor: float = 0.3,
        clip: float = 0.9,
        cutoff: float = 0.05,
        percentile: float = 30.0,
        pacer_step: float = 5.0,
        pacer_window: int = 20,
        slowness_penalty: float = 2.0,
        **options: Unpack[Options],
    ) -> None:
        if pacer_window < 1:
            raise ValueError(f"pacer_window = {pacer_window}: must be at least 1")
        super().__init__(**options)
        self.exploration = exploration
        self.exploration_decay = exploration_decay
        self.exploration_floor = exploration_floor
        self.clip = clip
        self.cutoff = cutoff
        self.percentile = percentile
        self.pacer_step = pacer_step
        self.pacer_window = pacer_window
        self.slowness_penalty = slowness_penalty

    def needs(self, server_round: int) -> frozenset[str]:
        """Return nothing: there is no roll call."""
        return frozenset()

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Draw by utility and explore."""
        memory = self.state.get("rewards", {})
        scores = oort_scores(
            recall(memory, candidates, unseen=np.nan, failed=0.0),
            candidates.round - candidates.ages,
            candidates.seconds,
            round=candidates.round,
            percentile=self.state.get("percentile", self.percentile),
            clip=self.clip,
            alpha=self.slowness_penalty,
        )
        share = oort_exploration(
            candidates.round,
            initial=self.exploration,
            decay=self.exploration_decay,
            floor=self.exploration_floor,
        )
        rows = select_oort(
            scores, candidates.seconds, budget, rng, exploration=share, cutoff=self.cutoff
        )
        return Selection(rows, scores=np.nan_to_num(scores), diagnostics={"exploration": share})

    def observe(self, feedback: Feedback) -> None:
        """Note the rewards, and pace the preferred duration by their sum."""
        earned = oort_rewards(feedback.loss_rms, feedback.examples)
        rewards = zip(feedback.names, map(float, earned), strict=True)
        self.state.setdefault("rewards", {}).update(rewards)
        utilities = [*self.state.get("utilities", []), float(earned.sum())]
        self.state["percentile"] = oort_pacer(
            self.state.get("percentile", self.percentile),
            utilities,
            step=self.pacer_step,
            window=self.pacer_window,
        )
        # The pacer compares two windows; the older one has then served.
        full = len(utilities) == 2 * self.pacer_window
        self.state["utilities"] = utilities[self.pacer_window :] if full else utilities
