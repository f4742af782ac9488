"""The two-phase round: roll call, selection, training."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.app.typing import MetricRecordValues
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.supercore import log

from strategies.aggregation import aggregate, announce
from strategies.exchange import Answers, Exchange
from strategies.messages import (
    EVALUATE,
    NAME,
    SKETCH,
    TRAIN,
    ReplyError,
    SketchReply,
    TrainReply,
    client_name,
    count_bytes,
    float_shapes,
    number,
    read_sketch,
    read_trained,
    wants_model,
)
from strategies.naming import natural_key
from strategies.randomness import derive_rng
from strategies.record import Feedback, RoundRecord
from strategies.records import content_of, find
from strategies.roll_call import everyone, outliers, tabulate
from strategies.roster import Pool, Roster
from strategies.selection.types import Candidates, Selection, Selector
from strategies.sketch import SketchSpec
from strategies.updates import Updates, subtract

__all__ = ["TooFewClientsError", "TwoPhaseStrategy"]

Parts = Mapping[str, ArrayRecord | ConfigRecord]
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

_TWICE = "two nodes go by this name; give each its own client-name"


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
        # The open round: set by `configure_train`, completed by `aggregate_train`.
        self._record = RoundRecord(0)
        self._model = ArrayRecord()
        self._config = ConfigRecord()
        self._train_configs: dict[bool, ConfigRecord] = {}
        self._selection = Selection(np.empty(0, dtype=np.int64))
        self._names: tuple[str, ...] = ()
        self._holders: frozenset[str] = frozenset()
        self._candidates = everyone(self._roster.pool((), 0), 0)
        self._trained: dict[str, tuple[Message, TrainReply]] = {}

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
        self._record = RoundRecord(server_round)
        self._model, self._trained = arrays, {}
        self._holders = frozenset()
        self._select_nobody()
        self._config = ConfigRecord({**config, "round": server_round, "seed": self.seed})
        self._train_configs = {}
        announce(self.aggregator, server_round, arrays, self._config, grid)

        nodes = self._free_nodes(grid)
        needs = self.needs(server_round)
        draws = self.needs_pool or self.candidate_fraction < 1
        if not needs or draws:
            self._learn_names(grid, nodes)
        by_name = self._roster.nodes_by_name(nodes)
        if needs:
            asked = list(nodes)
            if draws:
                rng = derive_rng(self.seed, server_round, "", "roll-call")
                pool = self._roster.pool(by_name, server_round)
                asked = [by_name[name] for name in self.roll_call(server_round, pool, rng)]
            self._candidates = self._hold_roll_call(grid, asked, needs)
            by_name = self._roster.nodes_by_name(nodes)
        else:
            self._candidates = everyone(self._roster.pool(by_name, server_round), server_round)
        self._record.eligible = sorted(by_name, key=natural_key)
        if self._record.skipped is None:
            self._pick(self._candidates)
        return [self._training_message(by_name[name]) for name in self._names]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies and have the aggregator combine them, in the order of their names.

        Returns (None, None) where the round is skipped: the model stays as it is.
        """
        for reply in replies:
            if not reply.has_error():
                self._accept(reply)
        return self._aggregate(server_round)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one evaluation message for every client that is not busy."""
        config = ConfigRecord({**config, "round": server_round})
        return [
            self._message(node, EVALUATE, {"arrays": arrays, "config": config})
            for node in self._free_nodes(grid)
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return mean and worst accuracy over the clients, and the mean of their losses."""
        accuracy: dict[str, float] = {}
        losses = []
        for reply in replies:
            if reply.has_error():
                continue
            node = reply.metadata.src_node_id
            try:
                name = client_name(reply)
                metrics = reply.content.metric_records["metrics"]
                value, loss = number(metrics, "accuracy"), number(metrics, "loss")
            except (ReplyError, KeyError) as error:
                self._record.failed[self._roster.label(node)] = f"evaluate: {error}"
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
        self._record.metrics |= {
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
        result = Result(arrays=initial_arrays)
        arrays = initial_arrays
        self._wait_for_clients(grid)
        for server_round in range(first_round, num_rounds + 1):
            messages = list(self.configure_train(server_round, arrays, train_config, grid))
            self._train(grid, messages)
            updated, train_metrics = self._aggregate(server_round)
            previous, arrays = arrays, updated or arrays
            if train_metrics is not None:
                result.train_metrics_clientapp[server_round] = train_metrics

            due = evaluate_every > 0 and (
                server_round % evaluate_every == 0 or server_round == num_rounds
            )
            if due:
                messages = list(
                    self.configure_evaluate(server_round, arrays, evaluate_config, grid)
                )
                quorum = self._least(len(messages))
                answers = self._send(grid, messages, "evaluate", quorum=quorum)
                summary = self.aggregate_evaluate(server_round, answers.replies.values())
                if summary is not None:
                    result.evaluate_metrics_clientapp[server_round] = summary
            central = None
            if evaluate_fn is not None and (due or self.needs_accuracy):
                central = evaluate_fn(server_round, arrays)
            if central is not None:
                result.evaluate_metrics_serverapp[server_round] = central
                self._record.metrics |= {f"central-{key}": value for key, value in central.items()}
            learns = type(self).observe is not TwoPhaseStrategy.observe
            if learns and self._record.skipped is None:
                self.observe(self._feedback(previous, arrays, central))
            result.arrays = arrays
            if on_round is not None:
                on_round(self._record, arrays)
        return result

    # --- nodes and names --------------------------------------------------------------------------

    def _wait_for_clients(self, grid: Grid) -> None:
        end = time.monotonic() + self.wait
        told = pause = 0.05
        while (connected := len(list(grid.get_node_ids()))) < self.min_clients:
            if time.monotonic() >= end:
                raise TooFewClientsError(
                    f"{self.min_clients} clients are needed (clients-per-round = "
                    f"{self.clients_per_round}), {connected} are connected after {self.wait:g} s; "
                    f"allowed is at most {connected}"
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

    def _free_nodes(self, grid: Grid) -> list[int]:
        """Return the connected nodes without an outstanding message; the rest go to `failed`."""
        busy = self._exchange.busy(grid)
        nodes = sorted(grid.get_node_ids())
        for node in busy.intersection(nodes):
            label = self._roster.label(node)
            self._record.failed.setdefault(label, "still busy with an earlier message")
        return [node for node in nodes if node not in busy]

    def _learn_names(self, grid: Grid, nodes: Iterable[int]) -> None:
        strangers = [node for node in nodes if self._roster.name(node) is None]
        if not strangers:
            return
        messages = [self._message(node, NAME, {"config": self._config}) for node in strangers]
        answers = self._send(grid, messages, "query", quorum=self._least(len(messages)))
        names = Counter[str]()
        learned = []
        for node, reply in answers.replies.items():
            try:
                metrics = find(reply.content, "metrics", MetricRecord) or MetricRecord()
                examples = int(number(metrics, "num-examples", least=1))
                name = client_name(reply)
            except ReplyError as error:
                self._record.failed[self._roster.label(node)] = f"query: {error}"
                continue
            names[name] += 1
            learned.append((node, name, examples))
        for node, name, examples in learned:
            if names[name] > 1:
                self._record.failed[name] = _TWICE
            else:
                self._roster.introduce(node, name, examples)

    # --- phase 1 ----------------------------------------------------------------------------------

    def _hold_roll_call(
        self, grid: Grid, asked: Sequence[int], needs: frozenset[str]
    ) -> Candidates:
        record = self._record
        sizes = self.sketch.sizes(float_shapes(self._model)) if "sketch" in needs else {}
        config = ConfigRecord(
            {
                **self._config,
                "needs": sorted(needs),
                "sketch-ratio": self.sketch.ratio,
                "sketch-kind": self.sketch.kind,
                "sketch-layers": list(self.sketch.layers),
                "sketch-seed": self.sketch.seed,
                "sketch-of": self.sketch_of,
                "keep": self.reuse_update,
                "train-needs": sorted(self.train_needs),
            }
        )
        parts: Parts = {"arrays": self._model, "config": config}
        messages = [self._message(node, SKETCH, parts) for node in asked]
        least = max(self._least(len(asked)), min(self.clients_per_round, len(asked)))
        answers = self._send(grid, messages, "sketch", quorum=least)

        rows: dict[str, SketchReply] = {}
        twice = set()
        for node in sorted(answers.replies):
            reply = answers.replies[node]
            try:
                name = client_name(reply)
                row = read_sketch(reply, record.round, needs=needs, entries=sum(sizes.values()))
            except ReplyError as error:
                record.failed[self._roster.label(node)] = str(error)
                continue
            if name in rows:
                twice.add(name)
            self._roster.introduce(node, name, row.examples)
            self._roster.time(name, answers.seconds[node])
            rows[name] = row
        wrong = dict.fromkeys(twice, _TWICE)
        if "sketch" in needs:
            wrong |= outliers(rows, self.max_norm_ratio)
        record.failed |= wrong
        rows = {name: row for name, row in rows.items() if name not in wrong}

        least = self._least(len(asked))
        if len(rows) < least:
            record.skipped = (
                f"{len(rows)} of {len(asked)} clients answered the roll call, quorum {least}"
            )
        table = tabulate(rows, sizes, self._roster, record.round)
        record.sketched = list(table.names)
        if self.reuse_update:
            self._holders = frozenset(table.names)
        return table

    # --- selection and phase 2 --------------------------------------------------------------------

    def _select_nobody(self) -> None:
        self._selection = Selection(np.empty(0, dtype=np.int64))
        self._names = ()

    def _pick(self, candidates: Candidates) -> None:
        record = self._record
        if not len(candidates):
            record.skipped = "no client is available"
            return
        budget = min(self.clients_per_round, len(candidates))
        rng = derive_rng(self.seed, record.round, "", "select")
        self._selection = self.select(candidates, budget, rng)
        self._names = tuple(candidates.names[row] for row in self._selection.rows)
        record.selected = list(self._names)
        record.diagnostics = dict(self._selection.diagnostics)
        if self._selection.scores is not None:
            scores = map(float, self._selection.scores)
            record.scores = dict(zip(candidates.names, scores, strict=True))
        self._roster.select(self._names, record.round)

    def _reserves(self) -> list[str]:
        """Return who may replace a client that fails: best score first, then longest waiting.

        None where the picks carry coefficients: those belong to the picks alone.
        """
        if not self.replacements or self._selection.coefficients is not None:
            return []
        table, scores = self._candidates, self._selection.scores
        rest = [row for row in range(len(table)) if table.names[row] not in self._names]
        rest.sort(key=lambda row: (-scores[row] if scores is not None else 0.0, -table.ages[row]))
        return [table.names[row] for row in rest]

    def _training_message(self, node: int, *, with_model: bool = False) -> Message:
        kept = self._roster.name(node) in self._holders and not with_model
        if kept not in self._train_configs:
            needs = sorted(self.train_needs)
            config = ConfigRecord({**self._config, "needs": needs, "kept": kept})
            self._train_configs[kept] = config
        parts: dict[str, ArrayRecord | ConfigRecord] = {"config": self._train_configs[kept]}
        if not kept:
            parts["arrays"] = self._model
        return self._message(node, TRAIN, parts)

    def _train(self, grid: Grid, messages: Sequence[Message]) -> None:
        """Send the training messages and note the good replies; replace clients that fail."""
        reserves = self._reserves()
        left = self.replacements
        while messages:
            answers = self._send(grid, messages, "train", quorum=self._least(len(messages)))
            without_model = {
                message.metadata.dst_node_id
                for message in messages
                if "arrays" not in message.content
            }
            again = []
            missing = len(messages)
            for node in sorted(answers.replies):
                reply = answers.replies[node]
                if node in without_model and wants_model(reply):
                    # The node lost what it kept, by a restart say: it trains from the model.
                    again.append(self._training_message(node, with_model=True))
                    missing -= 1
                elif self._accept(reply):
                    self._roster.time(self._roster.label(node), answers.seconds[node])
                    missing -= 1
            busy = self._exchange.busy(grid) if missing and left else set()
            by_name = self._roster.nodes_by_name(
                node for node in grid.get_node_ids() if node not in busy
            )
            while missing and left and reserves:
                name = reserves.pop(0)
                if name in by_name:
                    again.append(self._training_message(by_name[name]))
                    self._record.selected.append(name)
                    self._roster.select([name], self._record.round)
                    missing, left = missing - 1, left - 1
            messages = again

    def _accept(self, reply: Message) -> bool:
        """Check a reply of phase 2 and note it; a bad one goes to `failed`."""
        record = self._record
        node = reply.metadata.src_node_id
        label = self._roster.label(node)
        try:
            name = self._roster.name(node) or client_name(reply)
            trained = read_trained(reply, record.round, model=self._model, needs=self.train_needs)
            if name not in record.selected:
                raise ReplyError("a model came from a client that was not picked")
        except ReplyError as error:
            record.failed[label] = str(error)
            return False
        self._trained[name] = (reply, trained)
        return True

    def _aggregate(self, server_round: int) -> tuple[ArrayRecord | None, MetricRecord | None]:
        record = self._record
        names = sorted(self._trained, key=natural_key)
        record.replied = names
        least = self._least(len(self._names))
        if record.skipped is None and not self._names:
            record.skipped = "nobody was picked"
        if record.skipped is None and len(names) < least:
            record.skipped = f"{len(names)} of {len(self._names)} models came back, quorum {least}"
        if record.skipped is not None:
            return None, None
        coefficients = self._selection.coefficients
        if coefficients is not None:
            coefficients = coefficients[[self._names.index(name) for name in names]]
        trained = [self._trained[name] for name in names]
        arrays = aggregate(
            self.aggregator,
            server_round,
            trained,
            model=self._model,
            by_examples=self.by_examples,
            coefficients=coefficients,
        )
        if arrays is None:
            record.skipped = f"{type(self.aggregator).__name__} declined {len(names)} models"
            return None, None
        examples = [reply.examples for _, reply in trained]
        losses = [reply.train_loss for _, reply in trained]
        loss = float(np.average(losses, weights=examples))
        if math.isnan(loss):
            return arrays, None
        record.metrics["train-loss"] = loss
        return arrays, MetricRecord({"train-loss": loss})

    def _feedback(
        self, before: ArrayRecord, after: ArrayRecord, central: MetricRecord | None
    ) -> Feedback:
        names = tuple(self._record.replied)
        trained = [self._trained[name][1] for name in names]
        central = central or MetricRecord()
        accuracy, loss = central.get("accuracy"), central.get("loss")
        return Feedback(
            round=self._record.round,
            names=names,
            losses=np.array([reply.loss for reply in trained]),
            loss_rms=np.array([reply.loss_rms for reply in trained]),
            examples=np.array([reply.examples for reply in trained], dtype=np.int64),
            seconds=self._roster.seconds(names),
            updates=Updates(before, [reply.arrays for reply in trained]),
            global_update=subtract(before, after),
            accuracy=accuracy if isinstance(accuracy, float) else None,
            loss=loss if isinstance(loss, float) else None,
            candidates=self._candidates if self._record.sketched else None,
        )

    # --- messages ---------------------------------------------------------------------------------

    def _least(self, asked: int) -> int:
        """Return how many of the clients written to must answer."""
        return max(1, math.ceil(self.quorum * asked))

    def _message(self, node: int, kind: str, parts: Parts) -> Message:
        # Each message has a RecordDict of its own; the records in it are shared and never changed.
        return self._exchange.message(content_of(parts), node, kind, self._record.round)

    def _send(self, grid: Grid, messages: Sequence[Message], phase: str, *, quorum: int) -> Answers:
        """Exchange messages; note bytes, seconds and failures under the phase's name."""
        record = self._record
        started = time.perf_counter()
        sizes: dict[int, int] = {}
        down = 0
        for message in messages:
            # Messages of a phase mostly carry the same records; count each combination once.
            key = hash(tuple(map(id, message.content.values())))
            if key not in sizes:
                sizes[key] = count_bytes(message.content)
            down += sizes[key]
        answers = self._exchange.send(grid, messages, quorum=quorum)
        up = sum(count_bytes(reply.content) for reply in answers.replies.values())
        for ledger, amount in ((record.bytes_down, down), (record.bytes_up, up)):
            ledger[phase] = ledger.get(phase, 0) + amount
        took = time.perf_counter() - started
        record.seconds[phase] = record.seconds.get(phase, 0.0) + took
        for node, reason in answers.failed.items():
            record.failed[self._roster.label(node)] = f"{phase}: {reason}"
        return answers


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name} = {value!r}: must be {allowed}")
