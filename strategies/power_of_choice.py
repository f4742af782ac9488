"""Power-of-choice: the largest losses among a few candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack, get_args

import numpy as np

from strategies.memory import recall
from strategies.options import Options
from strategies.record import Feedback
from strategies.roster import Pool
from strategies.selection.baselines import draw_candidates, select_power_of_choice
from strategies.selection.types import Candidates, Selection
from strategies.two_phase import TwoPhaseStrategy

__all__ = ["PowerOfChoice"]

Variant = Literal["pow-d", "cpow-d", "rpow-d"]


class PowerOfChoice(TwoPhaseStrategy):
    """Draws d candidates by their examples and trains those with the largest loss, plain mean.

    "Towards understanding biased client selection in federated learning" (AISTATS 2022), pi_pow-d.
    d is `candidate_fraction` of the clients, never less than the cohort; 1, the default, is d = N
    as in the ADCS paper. The mean is plain, as published: `weighting` has no effect.

    Departure: for rpow-d the loss remembered is that before local training, as in the other
    variants, and a client that was picked but never answered comes last.

    Parameters
    ----------
    variant : "pow-d", "cpow-d" or "rpow-d"
        The loss of the global model over all local examples; over one mini-batch; or the last one
        reported when the client trained, infinite before that, which needs no roll call.
    **options
        As for `TwoPhaseStrategy`.
    """

    def __init__(self, *, variant: Variant = "pow-d", **options: Unpack[Options]) -> None:
        if variant not in get_args(Variant):
            allowed = ", ".join(get_args(Variant))
            raise ValueError(f"variant = {variant!r}: must be one of {allowed}")
        super().__init__(**options)
        self.by_examples = False
        self.variant = variant
        if variant == "rpow-d":
            self.train_needs = frozenset({"loss"})

    def needs(self, server_round: int) -> frozenset[str]:
        """Return the loss in question; nothing for rpow-d."""
        collected = {"pow-d": {"loss"}, "cpow-d": {"batch-loss"}, "rpow-d": set[str]()}
        return frozenset(collected[self.variant])

    def roll_call(self, server_round: int, pool: Pool, rng: np.random.Generator) -> Sequence[str]:
        """Draw the d candidates with probability proportional to their examples."""
        rows = draw_candidates(pool.examples, self._count(len(pool.names)), rng)
        return [pool.names[row] for row in sorted(rows)]

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Pick the largest losses of those asked or, for rpow-d, of d clients drawn now."""
        asked = np.arange(len(candidates))
        losses = candidates.losses
        if self.variant == "rpow-d":
            asked = draw_candidates(candidates.examples, self._count(len(candidates)), rng)
            memory = self.state.get("losses", {})
            losses = recall(memory, candidates, unseen=np.inf, failed=0.0)
        rows = asked[select_power_of_choice(losses[asked], budget, rng)]
        return Selection(rows, scores=np.nan_to_num(losses))

    def observe(self, feedback: Feedback) -> None:
        """Remember the losses that came with the models (rpow-d)."""
        if self.variant == "rpow-d":
            losses = map(float, feedback.losses)
            self.state.setdefault("losses", {}).update(zip(feedback.names, losses, strict=True))

    def _count(self, clients: int) -> int:
        return min(clients, max(self.clients_per_round, round(self.candidate_fraction * clients)))
