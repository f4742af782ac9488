"""The two-phase round: roll call, selection, training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from logging import INFO
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.app.typing import MetricRecordValues
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.supercore import log

from strategies.aggregation import announce
from strategies.exchange import Exchange
from strategies.messages import (
    EVALUATE,
    ReplyError,
    client_name,
    number,
)
from strategies.naming import natural_key
from strategies.randomness import derive_rng
from strategies.record import Feedback, RoundRecord
from strategies.roster import Pool, Roster
from strategies.round import Round
from strategies.selection.types import Candidates, Selection, Selector
from strategies.sketch import SketchSpec

__all__ = ["TooFewClientsError", "TwoPhaseStrategy"]

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class TooFewClientsError(RuntimeError):
    """Fewer clients are connected than a run needs."""


class TwoPhaseStrategy(Strategy):
    """A Flower strategy that asks many clients for a sketch and trains the few it picks.

    A round: (1) the candidates answer the roll call with what `needs` names, (2) `select` picks a
    cohort, (3) the cohort sends its models, a Flower strategy aggregates them, (4) `observe` learns
    from the outcome. A strategy that needs nothing skips the roll call.

    Subclasses pass a selector, or override `needs`, `roll_call`, `select` and `observe` and keep
    what they remember in `state`.

    Parameters
    ----------
    selector : Selector, optional
        The rule that picks; subclasses may override `needs` and `select` instead.
    clients_per_round : int
        The cohort's size.
    seed : int
        Seed of everything random on the server; also sent to the clients.
    aggregator : Strategy, optional
        The Flower strategy that aggregates; `FedAvg` by default.
    sketch : SketchSpec, optional
        What a sketch is; 0.5% of the entries of all floating-point arrays by default.
    sketch_of : "update" or "gradient"
        Sketch the whole local update, or only the first mini-batch gradient (cheaper in phase 1,
        but then nothing can be reused).
    candidate_fraction : float
        Share of the clients asked in the roll call, drawn uniformly, in (0, 1].
    reuse_update : bool
        Clients keep what they computed in phase 1; phase 2 then carries no model and nobody trains
        twice. Off by itself where `sketch_of="gradient"`.
    weighting : "examples" or "uniform"
        Weigh updates by training examples, or equally as both papers do.
    replacements : int
        How many picked clients that fail may be replaced by the next in rank, per round.
    quorum : float
        Share of the clients written to in a phase that must answer, in [0, 1]; at least one.
        Below it the round is skipped.
    deadline, grace : float
        Seconds, see `Exchange`.
    max_norm_ratio : float
        A sketch whose norm exceeds the cohort's median this many times is left out (three clients
        or more); `inf` switches the check off.
    min_clients : int
        Clients to wait for before the first round; at least `clients_per_round` in any case.
    wait : float
        Seconds to wait for them.

    Raises
    ------
    ValueError
        If an option is out of range.
    """

    train_needs: frozenset[str] = frozenset()
    """What phase 2 reports besides the model: any of `"loss"`, `"loss-rms"`."""

    needs_accuracy: ClassVar[bool] = False
    """Whether `observe` wants a central evaluation after every round."""

    needs_pool: ClassVar[bool] = False
    """Whether `roll_call` must know names and examples before phase 1."""

    def __init__(
        self,
        selector: Selector | None = None,
        *,
        clients_per_round: int,
        seed: int = 0,
        aggregator: Strategy | None = None,
        sketch: SketchSpec | None = None,
        sketch_of: Literal["update", "gradient"] = "update",
        candidate_fraction: float = 1.0,
        reuse_update: bool = True,
        weighting: Literal["examples", "uniform"] = "examples",
        replacements: int = 0,
        quorum: float = 0.5,
        deadline: float = 600.0,
        grace: float = 60.0,
        max_norm_ratio: float = 1e4,
        min_clients: int = 0,
        wait: float = 600.0,
    ) -> None:
        _require(clients_per_round >= 1, "clients_per_round", clients_per_round, "at least 1")
        _require(0 < candidate_fraction <= 1, "candidate_fraction", candidate_fraction, "in (0, 1]")
        _require(0 <= quorum <= 1, "quorum", quorum, "in [0, 1]")
        _require(deadline > 0, "deadline", deadline, "above 0")
        _require(grace >= 0, "grace", grace, "at least 0")
        _require(replacements >= 0, "replacements", replacements, "at least 0")
        _require(max_norm_ratio > 1, "max_norm_ratio", max_norm_ratio, "above 1")
        _require(sketch_of in ("update", "gradient"), "sketch_of", sketch_of, "update or gradient")
        _require(
            weighting in ("examples", "uniform"), "weighting", weighting, "examples or uniform"
        )
        self.selector = selector
        self.clients_per_round = clients_per_round
        self.seed = seed
        self.aggregator = aggregator or FedAvg()
        self.sketch = sketch or SketchSpec(seed=seed)
        self.sketch_of = sketch_of
        self.candidate_fraction = candidate_fraction
        self.reuse_update = reuse_update and sketch_of == "update"
        self.by_examples = weighting == "examples"
        self.replacements = replacements
        self.quorum = quorum
        self.max_norm_ratio = max_norm_ratio
        self.min_clients = max(min_clients, clients_per_round)
        self.wait = wait
        self.state: dict[str, Any] = {}
        self._roster = Roster()
        self._exchange = Exchange(deadline=deadline, grace=grace)
        self._round: Round | None = None

    # --- what a subclass may override -------------------------------------------------------------

    def needs(self, server_round: int) -> frozenset[str]:
        """Return what the roll call of this round collects; see `Selector.needs`."""
        if self.selector is None:
            raise TypeError(f"{type(self).__name__} has no selector and does not override needs()")
        return self.selector.needs

    def roll_call(self, server_round: int, pool: Pool, rng: np.random.Generator) -> Sequence[str]:
        """Return the names of the clients to ask in phase 1: all, or a uniform draw of them."""
        if self.candidate_fraction == 1.0:
            return pool.names
        count = max(self.clients_per_round, round(self.candidate_fraction * len(pool.names)))
        rows = rng.choice(len(pool.names), size=min(count, len(pool.names)), replace=False)
        return [pool.names[row] for row in sorted(rows)]

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Pick the cohort."""
        if self.selector is None:
            raise TypeError(f"{type(self).__name__} has no selector and does not override select()")
        return self.selector(candidates, budget, rng)

    def observe(self, feedback: Feedback) -> None:
        """Learn from a finished round; does nothing unless overridden."""

    # --- checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next round depends on besides the model and the options."""
        aggregator = {
            name: value
            for name, value in vars(self.aggregator).items()
            if name in ("momentum_vector", "m_t", "v_t") and value is not None
        }
        return {
            "selector": self.state,
            "roster": self._roster.state_dict(),
            "aggregator": aggregator,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.state = state["selector"]
        self._roster.load_state_dict(state["roster"])
        vars(self.aggregator).update(state["aggregator"])

    # --- Flower's Strategy ------------------------------------------------------------------------

    def summary(self) -> None:
        """Log what this strategy does."""
        log(
            INFO,
            "%s: %d clients a round, sketch %g%% (%s), aggregated by %s",
            type(self).__name__,
            self.clients_per_round,
            100 * self.sketch.ratio,
            self.sketch.kind,
            type(self.aggregator).__name__,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Hold the roll call, pick the cohort, and return its training messages.

        Returns no message if the round cannot go on; `rounds.jsonl` says why.
        """
        opened = Round(self, self._roster, self._exchange, server_round, arrays, config)
        self._round = opened
        announce(self.aggregator, server_round, arrays, opened.config, grid)
        nodes = opened.free_nodes(grid)
        needs = self.needs(server_round)
        draws = self.needs_pool or self.candidate_fraction < 1
        if not needs or draws:
            opened.learn_names(grid, nodes)
        if needs:
            asked = nodes
            if draws:
                by_name = self._roster.nodes_by_name(nodes)
                rng = derive_rng(self.seed, server_round, "", "roll-call")
                pool = self._roster.pool(by_name, server_round)
                asked = [by_name[name] for name in self.roll_call(server_round, pool, rng)]
            opened.hold_roll_call(grid, asked, needs)
        return opened.pick(nodes)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies and have the aggregator combine them, in the order of their names.

        Returns (None, None) where the round is skipped: the model stays as it is.
        """
        opened = self._open_round()
        for reply in replies:
            if not reply.has_error():
                opened.accept(reply)
        return opened.aggregate()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one evaluation message for every client that is not busy."""
        opened = self._open_round()
        config = ConfigRecord({**config, "round": server_round})
        return [
            opened.message(node, EVALUATE, {"arrays": arrays, "config": config})
            for node in opened.free_nodes(grid)
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return mean and worst accuracy over the clients, and the mean of their losses."""
        record = self._open_round().record
        accuracy: dict[str, float] = {}
        losses = []
        for reply in replies:
            if reply.has_error():
                continue
            node = reply.metadata.src_node_id
            try:
                name = self._roster.name(node) or client_name(reply)
                metrics = reply.content.metric_records["metrics"]
                value, loss = number(metrics, "accuracy"), number(metrics, "loss")
            except (ReplyError, KeyError) as error:
                record.failed[self._roster.label(node)] = f"evaluate: {error}"
                continue
            accuracy[name] = value
            losses.append(loss)
        if not accuracy:
            return None
        names = sorted(accuracy, key=natural_key)
        by_client = [accuracy[name] for name in names]
        summary: dict[str, MetricRecordValues] = {
            "accuracy": float(np.mean(by_client)),
            "worst-accuracy": min(by_client),
            "client-loss": float(np.mean(losses)),
        }
        record.metrics |= {
            **summary,
            "accuracy-by-client": dict(zip(names, by_client, strict=True)),
        }
        return MetricRecord(summary)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        evaluate_every: int = 1,
        first_round: int = 1,
        on_round: Callable[[RoundRecord, ArrayRecord], None] | None = None,
    ) -> Result:
        """Run the rounds.

        Differs from Flower's loop in the exchange (see `Exchange`), in that a failed round is
        recorded and skipped, and in the parameters below.

        Parameters
        ----------
        grid, initial_arrays, num_rounds, train_config, evaluate_config, evaluate_fn
            As in Flower's `Strategy.start`.
        timeout : float, optional
            Overrides the deadline of each exchange, in seconds.
        evaluate_every : int
            Evaluate after every this many rounds, and after the last; 0 for never.
        first_round : int
            Where a resumed run goes on.
        on_round : callable, optional
            Called with the record and the model when a round has ended.

        Returns
        -------
        Result
            The final model and the metrics by round.

        Raises
        ------
        TooFewClientsError
            If too few clients connect in time before the first round.
        """
        if timeout is not None:
            self._exchange.deadline = timeout
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        learns = type(self).observe is not TwoPhaseStrategy.observe
        result = Result(arrays=initial_arrays)
        arrays = initial_arrays
        del initial_arrays
        self._wait_for_clients(grid)
        for server_round in range(first_round, num_rounds + 1):
            messages = list(self.configure_train(server_round, arrays, train_config, grid))
            opened = self._open_round()
            opened.train(grid, messages)
            updated, train_metrics = opened.aggregate()
            previous, arrays = arrays, updated or arrays
            result.arrays = arrays
            if not learns:
                opened.let_go()
                previous = arrays  # only `observe` looks back
            if train_metrics is not None:
                result.train_metrics_clientapp[server_round] = train_metrics

            due = evaluate_every > 0 and (
                server_round % evaluate_every == 0 or server_round == num_rounds
            )
            if due:
                messages = list(
                    self.configure_evaluate(server_round, arrays, evaluate_config, grid)
                )
                quorum = opened.least(len(messages))
                answers = opened.send(grid, messages, "evaluate", quorum=quorum)
                summary = self.aggregate_evaluate(server_round, answers.replies.values())
                if summary is not None:
                    result.evaluate_metrics_clientapp[server_round] = summary
            central = None
            if evaluate_fn is not None and (due or self.needs_accuracy):
                central = evaluate_fn(server_round, arrays)
            if central is not None:
                result.evaluate_metrics_serverapp[server_round] = central
                opened.record.metrics |= {f"central-{key}": value for key, value in central.items()}
            if learns and opened.record.skipped is None:
                self.observe(opened.feedback(previous, arrays, central))
            if on_round is not None:
                on_round(opened.record, arrays)
            # They hold the replies and the last model, which may be large, all through the next
            # roll call.
            self._round = None
            del messages, opened, previous
        return result

    # --- the round and the wait for its clients ---------------------------------------------------

    def _open_round(self) -> Round:
        if self._round is None:
            raise RuntimeError("configure_train opens a round; call it first")
        return self._round

    def _wait_for_clients(self, grid: Grid) -> None:
        end = time.monotonic() + self.wait
        told = pause = 0.05
        while (connected := len(list(grid.get_node_ids()))) < self.min_clients:
            if time.monotonic() >= end:
                cohort = self.min_clients == self.clients_per_round
                raise TooFewClientsError(
                    f"{'clients-per-round' if cohort else 'min-clients'} = {self.min_clients}: "
                    f"{connected} clients are connected after {self.wait:g} s; allowed is at most "
                    f"{connected}"
                )
            time.sleep(pause)
            pause = min(1.0, 1.5 * pause)
            told += pause
            if told > 10:
                log(INFO, "Waiting for clients: %d of %d connected", connected, self.min_clients)
                told = 0.0
        # A simulation registers its nodes one by one: let the number settle.
        while connected != (connected := len(list(grid.get_node_ids()))):
            time.sleep(0.2)


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name} = {value!r}: must be {allowed}")
