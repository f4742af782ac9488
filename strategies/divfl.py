"""DivFL: a cohort whose updates stand for everyone's."""

from __future__ import annotations

from typing import Unpack

import numpy as np

from strategies.options import Options
from strategies.record import Feedback
from strategies.selection.baselines import select_divfl
from strategies.selection.types import Candidates, Selection
from strategies.two_phase import TwoPhaseStrategy

__all__ = ["DivFL"]


class DivFL(TwoPhaseStrategy):
    """Picks clients by facility location: each client is near a picked one.

    "Diverse client selection for federated learning via submodular maximization" (ICLR 2022).

    Departures: those of `select_divfl`. Without overheads the server sketches the models it
    receives anyway, at coordinates that stay the same; clients never picked have no gradient yet
    and come first, in random order (the paper asks everyone once); clients that were picked but
    never answered come last.

    Parameters
    ----------
    no_overheads : bool
        No roll call: a client keeps the gradient of its last training.
    epsilon : float, optional
        In (0, 1): stochastic greedy.
    **options
        As for `TwoPhaseStrategy`.
    """

    def __init__(
        self,
        *,
        no_overheads: bool = False,
        epsilon: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.no_overheads = no_overheads
        self.epsilon = epsilon

    def needs(self, server_round: int) -> frozenset[str]:
        """Return the sketch, or nothing without overheads."""
        return frozenset() if self.no_overheads else frozenset({"sketch"})

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Pick from the sketches of this round, or from the last of each client."""
        if not self.no_overheads:
            rows = select_divfl(candidates.sketches, budget, epsilon=self.epsilon, rng=rng)
            return Selection(rows)
        memory = self.state.get("sketches", {})
        known = np.array([name in memory for name in candidates.names])
        unseen = ~known & (candidates.ages >= candidates.round)
        rows = rng.permutation(np.flatnonzero(unseen))[:budget]
        places = min(budget - len(rows), int(known.sum()))
        if places:
            sketches = np.stack([memory[name] for name in candidates.names if name in memory])
            picked = select_divfl(sketches, places, epsilon=self.epsilon, rng=rng)
            rows = np.concatenate([rows, np.flatnonzero(known)[picked]])
        last = rng.permutation(np.flatnonzero(~known & ~unseen))[: budget - len(rows)]
        return Selection(np.concatenate([rows, last]).astype(np.int64))

    def observe(self, feedback: Feedback) -> None:
        """Sketch the models received and keep that of each client (without overheads)."""
        if self.no_overheads:
            sketches = self.state.setdefault("sketches", {})
            for name, update in zip(feedback.names, feedback.updates, strict=True):
                sketches[name] = self.sketch.apply(0, update)
