"""GPFL: a bandit on gradient projections."""

from __future__ import annotations

import numpy as np

from strategies.memory import recall
from strategies.record import Feedback
from strategies.selection.baselines import (
    gpfl_projections,
    gpfl_rewards,
    gpfl_scores,
    select_gpfl,
)
from strategies.selection.types import Candidates, Selection
from strategies.two_phase import TwoPhaseStrategy

__all__ = ["GPFL"]


class GPFL(TwoPhaseStrategy):
    """Picks the clients whose updates went the way of the global one, with a bonus for the untried.

    "GPFL: a gradient projection-based client selection framework for efficient federated learning"
    (arXiv 2403.17833), the SCKM paper's "gpr". No roll call; the global model is evaluated
    centrally after every round. Without a central evaluation every round counts as a rise.

    Departures: those of `gpfl_projections` and `gpfl_rewards`; candidates are not filtered before
    training and clients train with their usual optimiser.
    """

    needs_accuracy = True

    def needs(self, server_round: int) -> frozenset[str]:
        """Return nothing: there is no roll call."""
        return frozenset()

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Pick the largest upper confidence bounds and count the picks."""
        counted = self.state.setdefault("counts", {})
        rewards = recall(self.state.get("rewards", {}), candidates, unseen=0.0, failed=0.0)
        counts = recall(counted, candidates, unseen=0.0, failed=0.0)
        rows = select_gpfl(rewards, counts, budget, round=candidates.round)
        scores = gpfl_scores(rewards, counts, candidates.round)
        for row in rows:
            counted[candidates.names[row]] = int(counts[row]) + 1
        # JSON has no infinity; nothing else reaches this far.
        return Selection(rows, scores=np.nan_to_num(scores, posinf=1e9))

    def observe(self, feedback: Feedback) -> None:
        """Reward the clients that trained."""
        accuracy, loss = self.state.get("accuracy"), self.state.get("loss")
        earned = gpfl_rewards(
            gpfl_projections(feedback.updates, feedback.global_update),
            accuracy_change=_change(accuracy, feedback.accuracy),
            loss_change=_change(loss, feedback.loss),
        )
        rewards = self.state.setdefault("rewards", {})
        for name, reward in zip(feedback.names, earned, strict=True):
            rewards[name] = rewards.get(name, 0.0) + float(reward)
        self.state |= {"accuracy": feedback.accuracy, "loss": feedback.loss}


def _change(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
