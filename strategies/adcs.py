"""ADCS: a cohort both good and diverse, by a determinantal point process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from strategies.options import Options
from strategies.selection.selectors import ADCSSelector, Quality
from strategies.selection.types import Candidates, Selection
from strategies.two_phase import TwoPhaseStrategy

__all__ = ["ADCS"]


class ADCS(TwoPhaseStrategy):
    """Adaptive Determinantal Client Scheduling (ADCS paper, Algorithm 1).

    Every `kernel_every` rounds (R) the roll call collects sketches and qualities; in between the
    kernel stays, so the same clients are picked and only they work. Departures: the kernel is built
    on sketches instead of whole updates and never formed (see `select_adcs`); a picked client that
    is gone is replaced by running the greedy step on those that are left of the kernel.

    Parameters
    ----------
    theta : float
        Weight of quality against diversity, in [0, 1].
    kernel_every : int
        Rounds between kernels, at least 1.
    quality : "loss", "norm" or "mixed"
        Local loss, update norm, or loss mixed with the speed of the reply.
    gamma : float
        Weight of speed in a mixed quality, in [0, 1].
    **options
        As for `TwoPhaseStrategy`.
    """

    def __init__(
        self,
        *,
        theta: float = 0.8,
        kernel_every: int = 1,
        quality: Quality = "loss",
        gamma: float = 0.5,
        **options: Unpack[Options],
    ) -> None:
        if kernel_every < 1:
            raise ValueError(f"kernel_every = {kernel_every}: must be at least 1")
        super().__init__(ADCSSelector(theta, quality, gamma), **options)
        self.kernel_every = kernel_every
        self._last: tuple[dict[str, Any], tuple[str, ...], int, Selection] | None = None

    def needs(self, server_round: int) -> frozenset[str]:
        """Return sketches and quality where a kernel is due, else nothing."""
        due = not self.state or server_round >= self.state["round"] + self.kernel_every
        return super().needs(server_round) if due else frozenset()

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Pick from a new kernel, or from what is left of the last one."""
        if self.needs(candidates.round):
            self.state = {
                "round": candidates.round,
                "names": list(candidates.names),
                "sketches": candidates.sketches,
                "losses": candidates.losses,
                "norms": candidates.norms,
                "seconds": candidates.seconds,
                "ages": candidates.ages,
            }
            kernel = candidates
        else:
            kernel = self._kernel_of(candidates)
        budget = min(budget, len(kernel))
        # The greedy step takes longer than a small model's training, and while the kernel stays its
        # outcome can change only with who is there.
        last = self._last
        if last is None or last[0] is not self.state or last[1:3] != (kernel.names, budget):
            last = self.state, kernel.names, budget, super().select(kernel, budget, rng)
            self._last = last
        return self._in_rows_of(candidates, kernel, last[3])

    def _kernel_of(self, candidates: Candidates) -> Candidates:
        """Return the clients of the last kernel that are still there, as they were then."""
        state = self.state
        row_now = {name: row for row, name in enumerate(candidates.names)}
        then = [row for row, name in enumerate(state["names"]) if name in row_now]
        now = [row_now[state["names"][row]] for row in then]
        return replace(
            candidates,
            names=tuple(state["names"][row] for row in then),
            sketches=state["sketches"][then],
            layers=(state["sketches"].shape[1],),
            losses=state["losses"][then],
            norms=state["norms"][then],
            seconds=state["seconds"][then],
            examples=candidates.examples[now],
            ages=state["ages"][then],
        )

    def _in_rows_of(
        self, candidates: Candidates, kernel: Candidates, selection: Selection
    ) -> Selection:
        row_now = {name: row for row, name in enumerate(candidates.names)}
        rows = np.array([row_now[kernel.names[row]] for row in selection.rows], dtype=np.int64)
        scores = None
        if selection.scores is not None:
            # Clients that came after the kernel rank last.
            scores = np.full(len(candidates), selection.scores.min(initial=0.0) - 1.0)
            scores[[row_now[name] for name in kernel.names]] = selection.scores
        return Selection(rows, scores, diagnostics={"kernel-round": self.state["round"]})
