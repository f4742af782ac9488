"""FedCor: correlations of the clients' losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from strategies.options import Options
from strategies.record import Feedback
from strategies.roster import Pool
from strategies.selection.baselines import fit_fedcor, select_fedcor, select_uniform
from strategies.selection.types import Candidates, Selection
from strategies.two_phase import TwoPhaseStrategy

__all__ = ["FedCor"]

_NOISE = 0.01


class FedCor(TwoPhaseStrategy):
    """Picks the clients whose loss tells most about everyone's, by a Gaussian process.

    "FedCor: correlation-based active client selection strategy for heterogeneous federated
    learning" (CVPR 2022). Cohorts are uniform for `warmup` rounds; the process is then fitted every
    `refit_every` rounds to the changes of all clients' losses.

    A change takes the losses of two rounds in a row, so all clients report theirs in rounds 1 to
    `warmup` + 1, and later in each round of a fit and the round before it. Departures: the fit is
    exact instead of gradient steps (see `fit_fedcor`); a client whose loss is missing counts as the
    process's mean, no change. The defaults are the paper's for Fashion-MNIST; for CIFAR-10 it has
    20, 50, 500, 0.99 and 0.9.

    Parameters
    ----------
    warmup : int
        Rounds of uniform cohorts, at least 1.
    refit_every : int
        Rounds between fits, at least 1.
    window : int
        M, rounds that a change is remembered, at least 1.
    discount : float
        gamma, weight of a change per round of its age, in (0, 1].
    repeat_discount : float
        beta, factor on a client's score for each pick since the last fit, in (0, 1].
    **options
        As for `TwoPhaseStrategy`.
    """

    def __init__(
        self,
        *,
        warmup: int = 15,
        refit_every: int = 10,
        window: int = 100,
        discount: float = 0.95,
        repeat_discount: float = 0.95,
        **options: Unpack[Options],
    ) -> None:
        for name, count in (("warmup", warmup), ("refit_every", refit_every), ("window", window)):
            if count < 1:
                raise ValueError(f"{name} = {count}: must be at least 1")
        for name, factor in (("discount", discount), ("repeat_discount", repeat_discount)):
            if not 0 < factor <= 1:
                raise ValueError(f"{name} = {factor}: must be in (0, 1]")
        super().__init__(**options)
        self.warmup = warmup
        self.refit_every = refit_every
        self.window = window
        self.discount = discount
        self.repeat_discount = repeat_discount

    def needs(self, server_round: int) -> frozenset[str]:
        """Return the loss in rounds that learn, else nothing."""
        first = self.warmup + 1
        phase = (server_round - first) % self.refit_every
        if server_round <= first or phase in (0, self.refit_every - 1):
            return frozenset({"loss"})
        return frozenset()

    def roll_call(self, server_round: int, pool: Pool, rng: np.random.Generator) -> Sequence[str]:
        """Ask everyone: the process is over all clients, whatever `candidate_fraction` says."""
        return pool.names

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Note the losses, fit if it is time, and pick."""
        if self.needs(candidates.round):
            self._note(candidates)
        since = candidates.round - self.warmup - 1
        if since >= 0 and since % self.refit_every == 0 and "changes" in self.state:
            self.state["embedding"] = fit_fedcor(
                self.state["changes"],
                candidates.round - self.state["rounds"],
                discount=self.discount,
                noise=_NOISE,
            )
            self.state["repeats"] = np.ones(len(self.state["clients"]))
        if since < 0 or "embedding" not in self.state:
            return Selection(select_uniform(len(candidates), budget, rng))
        columns = self._columns(candidates.names, self.state["embedding"].shape[1])
        known = columns >= 0
        embedding = np.where(known, self.state["embedding"][:, columns], 0.0)
        repeats = np.where(known, self.state["repeats"][columns], 1.0)
        rows, scores = select_fedcor(embedding, candidates.examples, repeats, budget, noise=_NOISE)
        factors = np.ones(len(self.state["repeats"]))
        factors[columns[rows[known[rows]]]] = self.repeat_discount
        self.state["repeats"] = factors * self.state["repeats"]
        return Selection(rows, scores=scores)

    def observe(self, feedback: Feedback) -> None:
        """Note that the model has changed."""
        self.state["trained"] = feedback.round

    def _note(self, candidates: Candidates) -> None:
        """Keep this round's losses and, if there are those of the round before, the change."""
        losses = dict(zip(candidates.names, map(float, candidates.losses), strict=True))
        before = self.state.get("losses", {})
        # A round that was skipped left the model as it was: nothing to learn from.
        follows = self.state.get("losses-round") == candidates.round - 1
        if follows and self.state.get("trained") == candidates.round - 1:
            self._add({name: losses[name] - before[name] for name in losses if name in before})
            recent = self.state["rounds"] > candidates.round - self.window
            self.state["changes"] = self.state["changes"][recent]
            self.state["rounds"] = self.state["rounds"][recent]
        self.state |= {"losses": losses, "losses-round": candidates.round}

    def _add(self, changes: dict[str, float]) -> None:
        """Append a row of changes; clients not met before get a column of zeros for the past."""
        state = self.state
        clients = state.setdefault("clients", [])
        clients.extend(name for name in changes if name not in set(clients))
        past = state.get("changes", np.empty((0, 0)))
        table = np.zeros((len(past) + 1, len(clients)))
        table[:-1, : past.shape[1]] = past
        table[-1] = [changes.get(name, 0.0) for name in clients]
        state["changes"] = table
        rounds = state.get("rounds", np.empty(0, dtype=np.int64))
        state["rounds"] = np.append(rounds, state["losses-round"] + 1)

    def _columns(self, names: tuple[str, ...], fitted: int) -> NDArray[np.int64]:
        """Return each client's column in the fit, -1 for one that came after it."""
        column_of = {name: column for column, name in enumerate(self.state["clients"][:fitted])}
        return np.array([column_of.get(name, -1) for name in names], dtype=np.int64)
