"""One open round of a two-phase strategy: what was sent, answered, picked and trained."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from strategies.aggregation import aggregate
from strategies.exchange import Answers, Exchange
from strategies.messages import (
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
from strategies.roster import Roster
from strategies.selection.types import Candidates, Selection
from strategies.sketch import SketchSpec
from strategies.updates import Updates, subtract

__all__ = ["Round"]

Parts = Mapping[str, ArrayRecord | ConfigRecord]

_TWICE = "two nodes go by this name; give each its own client-name"


class Rules(Protocol):
    """What a round needs of its strategy; `TwoPhaseStrategy` documents each."""

    aggregator: Strategy
    by_examples: bool
    clients_per_round: int
    max_norm_ratio: float
    quorum: float
    replacements: int
    reuse_update: bool
    seed: int
    sketch: SketchSpec
    sketch_of: Literal["update", "gradient"]
    train_needs: frozenset[str]

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Pick the cohort."""
        ...


class Round:
    """The phases of one round, in the order in which `TwoPhaseStrategy` calls them.

    Parameters
    ----------
    strategy : Rules
        The strategy's options, and its `select`.
    roster : Roster
        Who is who; outlives the round.
    exchange : Exchange
        Sends and receives; outlives the round.
    server_round : int
        The round.
    model : ArrayRecord
        The model the round starts from.
    config : ConfigRecord
        What the user tells the clients; round and seed are added.
    """

    def __init__(
        self,
        strategy: Rules,
        roster: Roster,
        exchange: Exchange,
        server_round: int,
        model: ArrayRecord,
        config: ConfigRecord,
    ) -> None:
        self.record = RoundRecord(server_round)
        self.config = ConfigRecord({**config, "round": server_round, "seed": strategy.seed})
        self._strategy = strategy
        self._roster = roster
        self._exchange = exchange
        self._model = model
        self._train_configs: dict[bool, ConfigRecord] = {}
        self._candidates = everyone(roster.pool((), server_round), server_round)
        self._called = False
        self._selection = Selection(np.empty(0, dtype=np.int64))
        self._names: tuple[str, ...] = ()
        self._holders: frozenset[str] = frozenset()  # who keeps something from phase 1
        self._trained: dict[str, tuple[Message, TrainReply]] = {}

    # --- nodes and names --------------------------------------------------------------------------

    def free_nodes(self, grid: Grid) -> list[int]:
        """Return the connected nodes without an outstanding message; the rest go to `failed`."""
        busy = self._exchange.busy(grid)
        nodes = sorted(grid.get_node_ids())
        for node in busy.intersection(nodes):
            label = self._roster.label(node)
            self.record.failed.setdefault(label, "still busy with an earlier message")
        return [node for node in nodes if node not in busy]

    def learn_names(self, grid: Grid, nodes: Iterable[int]) -> None:
        """Ask the nodes that have not given a name yet."""
        strangers = [node for node in nodes if self._roster.name(node) is None]
        if not strangers:
            return
        messages = [self.message(node, NAME, {"config": self.config}) for node in strangers]
        answers = self.send(grid, messages, "query", quorum=self.least(len(messages)))
        names = Counter[str]()
        learned = []
        for node, reply in answers.replies.items():
            try:
                metrics = find(reply.content, "metrics", MetricRecord) or MetricRecord()
                examples = int(number(metrics, "num-examples", least=1))
                name = client_name(reply)
            except ReplyError as error:
                self.record.failed[self._roster.label(node)] = f"query: {error}"
                continue
            names[name] += 1
            learned.append((node, name, examples))
        for node, name, examples in learned:
            if names[name] > 1:
                self.record.failed[name] = _TWICE
            else:
                self._roster.introduce(node, name, examples)

    # --- phase 1 ----------------------------------------------------------------------------------

    def hold_roll_call(self, grid: Grid, asked: Sequence[int], needs: frozenset[str]) -> None:
        """Ask for what is needed, check the replies and tabulate the candidates."""
        record, strategy = self.record, self._strategy
        sizes = strategy.sketch.sizes(float_shapes(self._model)) if "sketch" in needs else {}
        config = ConfigRecord(
            {
                **self.config,
                "needs": sorted(needs),
                "sketch-ratio": strategy.sketch.ratio,
                "sketch-kind": strategy.sketch.kind,
                "sketch-layers": list(strategy.sketch.layers),
                "sketch-seed": strategy.sketch.seed,
                "sketch-of": strategy.sketch_of,
                "keep": strategy.reuse_update,
                "train-needs": sorted(strategy.train_needs),
            }
        )
        parts: Parts = {"arrays": self._model, "config": config}
        messages = [self.message(node, SKETCH, parts) for node in asked]
        least = max(self.least(len(asked)), min(strategy.clients_per_round, len(asked)))
        answers = self.send(grid, messages, "sketch", quorum=least)

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
            wrong |= outliers(rows, strategy.max_norm_ratio)
        record.failed |= wrong
        rows = {name: row for name, row in rows.items() if name not in wrong}

        least = self.least(len(asked))
        if len(rows) < least:
            record.skipped = (
                f"{len(rows)} of {len(asked)} clients answered the roll call, quorum {least}"
            )
        self._candidates = tabulate(rows, sizes, self._roster, record.round)
        record.sketched = list(self._candidates.names)
        self._called = True
        if strategy.reuse_update:
            self._holders = frozenset(self._candidates.names)

    # --- selection and phase 2 --------------------------------------------------------------------

    def pick(self, nodes: Iterable[int]) -> list[Message]:
        """Have the strategy pick the cohort; return the cohort's training messages.

        Without a roll call every client that has a name is a candidate. Returns no message if the
        round cannot go on.
        """
        record, strategy = self.record, self._strategy
        by_name = self._roster.nodes_by_name(nodes)
        record.eligible = sorted(by_name, key=natural_key)
        if not self._called:
            self._candidates = everyone(self._roster.pool(by_name, record.round), record.round)
        if record.skipped is not None:
            return []
        if not len(self._candidates):
            record.skipped = "no client is available"
            return []
        budget = min(strategy.clients_per_round, len(self._candidates))
        rng = derive_rng(strategy.seed, record.round, "", "select")
        self._selection = strategy.select(self._candidates, budget, rng)
        self._names = tuple(self._candidates.names[row] for row in self._selection.rows)
        record.selected = list(self._names)
        record.diagnostics = dict(self._selection.diagnostics)
        if self._selection.scores is not None:
            scores = map(float, self._selection.scores)
            record.scores = dict(zip(self._candidates.names, scores, strict=True))
        self._roster.select(self._names, record.round)
        return [self._training_message(by_name[name]) for name in self._names]

    def _reserves(self) -> list[str]:
        """Return who may replace a client that fails: best score, then longest waiting, then any.

        None where the picks carry coefficients: those belong to the picks alone.
        """
        if not self._strategy.replacements or self._selection.coefficients is not None:
            return []
        table, scores = self._candidates, self._selection.scores
        rng = derive_rng(self._strategy.seed, self.record.round, "", "reserves")
        rows = rng.permutation(len(table)).tolist()  # no client comes first by its name
        rest = [row for row in rows if table.names[row] not in self._names]
        rest.sort(key=lambda row: (-scores[row] if scores is not None else 0.0, -table.ages[row]))
        return [table.names[row] for row in rest]

    def _training_message(self, node: int, *, with_model: bool = False) -> Message:
        kept = self._roster.name(node) in self._holders and not with_model
        if kept not in self._train_configs:
            needs = sorted(self._strategy.train_needs)
            config = ConfigRecord({**self.config, "needs": needs, "kept": kept})
            self._train_configs[kept] = config
        parts: dict[str, ArrayRecord | ConfigRecord] = {"config": self._train_configs[kept]}
        if not kept:
            parts["arrays"] = self._model
        return self.message(node, TRAIN, parts)

    def train(self, grid: Grid, messages: Sequence[Message]) -> None:
        """Send the training messages and note the good replies; replace clients that fail."""
        reserves = self._reserves()
        left = self._strategy.replacements
        while messages:
            answers = self.send(grid, messages, "train", quorum=self.least(len(messages)))
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
                elif self.accept(reply):
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
                    self.record.selected.append(name)
                    self._roster.select([name], self.record.round)
                    missing, left = missing - 1, left - 1
            messages = again

    def accept(self, reply: Message) -> bool:
        """Check a reply of phase 2 and note it; a bad one goes to `failed`."""
        record = self.record
        node = reply.metadata.src_node_id
        label = self._roster.label(node)
        try:
            name = self._roster.name(node) or client_name(reply)
            trained = read_trained(
                reply, record.round, model=self._model, needs=self._strategy.train_needs
            )
            if name not in record.selected:
                raise ReplyError("a model came from a client that was not picked")
        except ReplyError as error:
            record.failed[label] = str(error)
            return False
        self._trained[name] = (reply, trained)
        return True

    def aggregate(self) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the new model and the mean training loss; (None, None) if the round is skipped."""
        record = self.record
        names = sorted(self._trained, key=natural_key)
        record.replied = names
        least = self.least(len(self._names))
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
            self._strategy.aggregator,
            record.round,
            trained,
            model=self._model,
            by_examples=self._strategy.by_examples,
            coefficients=coefficients,
        )
        if arrays is None:
            record.skipped = (
                f"{type(self._strategy.aggregator).__name__} declined {len(names)} models"
            )
            return None, None
        examples = [reply.examples for _, reply in trained]
        losses = [reply.train_loss for _, reply in trained]
        loss = float(np.average(losses, weights=examples))
        if math.isnan(loss):
            return arrays, None
        record.metrics["train-loss"] = loss
        return arrays, MetricRecord({"train-loss": loss})

    def let_go(self) -> None:
        """Forget the models, before and after training: aggregated, only `feedback` needs them."""
        self._trained.clear()
        self._model = ArrayRecord()

    def feedback(
        self, before: ArrayRecord, after: ArrayRecord, central: MetricRecord | None
    ) -> Feedback:
        """Return what the finished round tells the strategy."""
        names = tuple(self.record.replied)
        trained = [self._trained[name][1] for name in names]
        central = central or MetricRecord()
        accuracy, loss = central.get("accuracy"), central.get("loss")
        return Feedback(
            round=self.record.round,
            names=names,
            losses=np.array([reply.loss for reply in trained]),
            loss_rms=np.array([reply.loss_rms for reply in trained]),
            examples=np.array([reply.examples for reply in trained], dtype=np.int64),
            seconds=self._roster.seconds(names),
            updates=Updates(before, [reply.arrays for reply in trained]),
            global_update=subtract(before, after),
            accuracy=accuracy if isinstance(accuracy, float) else None,
            loss=loss if isinstance(loss, float) else None,
            candidates=self._candidates if self._called else None,
        )

    # --- messages ---------------------------------------------------------------------------------

    def least(self, asked: int) -> int:
        """Return how many of the clients written to must answer."""
        return max(1, math.ceil(self._strategy.quorum * asked))

    def message(self, node: int, kind: str, parts: Parts) -> Message:
        """Return a message of this round."""
        # Each message has a RecordDict of its own; the records in it are shared and never changed.
        return self._exchange.message(content_of(parts), node, kind, self.record.round)

    def send(self, grid: Grid, messages: Sequence[Message], phase: str, *, quorum: int) -> Answers:
        """Exchange messages; note bytes, seconds and failures under the phase's name."""
        record = self.record
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
            record.failed.setdefault(self._roster.label(node), f"{phase}: {reason}")
        return answers
