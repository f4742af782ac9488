from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Fault, StubClients, examples_of, loss_of, stub_model, trained_model
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Result, Strategy

from simulation.inline import InlineGrid
from strategies import (
    ADCS,
    Feedback,
    RoundRecord,
    RoundRobin,
    SCKMCluster,
    SCKMSelect,
    SketchSpec,
    TooFewClientsError,
    TwoPhaseStrategy,
    Uniform,
)
from strategies.selection import select_sckm
from strategies.selection.types import Candidates, Selection

CLIENTS = 6
SKETCH = SketchSpec(ratio=0.1)  # 40 + 1 entries of the stub model


class Outcome:
    """What a run left behind."""

    def __init__(self, result: Result, records: list[RoundRecord], models: list[ArrayRecord]):
        self.result, self.records, self.models = result, records, models

    @property
    def picks(self) -> list[list[str]]:
        return [record.selected for record in self.records]


def run(
    strategy: TwoPhaseStrategy,
    clients: StubClients | None = None,
    *,
    rounds: int = 3,
    num_clients: int = CLIENTS,
    model: ArrayRecord | None = None,
    node_ids: list[int] | None = None,
    grid: InlineGrid | None = None,
    **options: Any,
) -> Outcome:
    clients = clients or StubClients()
    grid = grid or InlineGrid(clients.app, num_clients, node_ids=node_ids)
    records: list[RoundRecord] = []
    models: list[ArrayRecord] = []

    def keep(record: RoundRecord, arrays: ArrayRecord) -> None:
        json.dumps(record.to_json(), allow_nan=False)
        records.append(record)
        models.append(arrays)

    result = strategy.start(
        grid, model or stub_model(), num_rounds=rounds, on_round=keep, **options
    )
    return Outcome(result, records, models)


def sckm(**options: Any) -> SCKMSelect:
    return SCKMSelect(**{"clients_per_round": 2, "sketch": SKETCH, **options})


def arrays_of(model: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in model.items()}


def assert_same(a: ArrayRecord, b: ArrayRecord) -> None:
    """Bit for bit."""
    assert list(a) == list(b)
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert tuple(a[name].shape) == tuple(b[name].shape)
        assert a[name].data == b[name].data


# --- the honest round -----------------------------------------------------------------------------


def test_a_round_picks_by_the_sketches_and_averages_the_picked() -> None:
    """The whole round against its parts, put together by hand."""
    strategy = sckm(seed=5, sketch=SketchSpec(ratio=0.1, seed=5))
    outcome = run(strategy, rounds=2)
    model, ages = stub_model(), np.arange(CLIENTS) * 0
    last = dict.fromkeys(range(CLIENTS), 0)
    for turn, record in enumerate(outcome.records, start=1):
        local = [trained_model(model, 5, turn, str(i)) for i in range(CLIENTS)]
        sketches = np.stack(
            [
                SketchSpec(ratio=0.1, seed=5).apply(
                    turn, {k: model[k].numpy() - m[k].numpy() for k in ("w", "b")}
                )
                for m in local
            ]
        )
        ages = np.array([turn - last[i] for i in range(CLIENTS)])
        rows = select_sckm(sketches, 2, age=ages).tolist()
        assert record.selected == [str(i) for i in rows]
        assert record.sketched == record.eligible == [str(i) for i in range(CLIENTS)]
        assert record.replied == sorted(record.selected)
        assert record.failed == {}
        assert record.skipped is None
        weights = np.array([examples_of(str(i)) for i in sorted(rows)], dtype=float)
        for key in ("w", "b"):
            stack = [local[i][key].numpy().astype(np.float64) for i in sorted(rows)]
            want = np.average(stack, axis=0, weights=weights)
            np.testing.assert_allclose(
                outcome.models[turn - 1][key].numpy(), want, rtol=1e-6, atol=1e-6
            )
        losses = [loss_of(str(i), turn) for i in sorted(rows)]
        assert record.metrics["train-loss"] == pytest.approx(np.average(losses, weights=weights))
        last |= dict.fromkeys(rows, turn)
        model = outcome.models[turn - 1]


def test_uniform_weights_are_the_plain_mean() -> None:
    outcome = run(sckm(weighting="uniform"), rounds=1)
    local = [trained_model(stub_model(), 0, 1, name)["w"].numpy() for name in outcome.picks[0]]
    np.testing.assert_allclose(
        outcome.models[0]["w"].numpy(), np.mean(local, axis=0), rtol=1e-6, atol=1e-6
    )
    assert not np.allclose(
        outcome.models[0]["w"].numpy(), run(sckm(), rounds=1).models[0]["w"].numpy()
    )


def test_the_model_keeps_its_names_shapes_and_types() -> None:
    outcome = run(sckm(), rounds=3)
    for model in outcome.models:
        assert list(model) == ["w", "b", "count"]
        assert {k: (a.dtype, tuple(a.shape)) for k, a in model.items()} == {
            "w": ("float32", (40, 10)),
            "b": ("float32", (10,)),
            "count": ("int64", ()),
        }
    assert outcome.models[-1]["count"].numpy() == 3


def test_evaluation_names_mean_worst_and_every_client() -> None:
    outcome = run(sckm(), rounds=1)
    metrics = outcome.records[0].metrics
    want = {str(i): 1 / (1 + i) for i in range(CLIENTS)}
    assert metrics["accuracy-by-client"] == want
    assert list(metrics["accuracy-by-client"]) == list(want)
    assert metrics["accuracy"] == pytest.approx(np.mean(list(want.values())))
    assert metrics["worst-accuracy"] == 1 / CLIENTS
    assert metrics["client-loss"] == pytest.approx(1 - metrics["accuracy"])


@pytest.mark.parametrize(("every", "evaluated"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (0, [])])
def test_evaluation_comes_every_so_many_rounds_and_last(every: int, evaluated: list[int]) -> None:
    central: list[int] = []

    def evaluate_fn(server_round: int, model: ArrayRecord) -> MetricRecord:
        central.append(server_round)
        return MetricRecord({"accuracy": 0.5})

    clients = StubClients()
    outcome = run(sckm(), clients, rounds=5, evaluate_every=every, evaluate_fn=evaluate_fn)
    found = [r.round for r in outcome.records if "accuracy" in r.metrics]
    assert found == central == evaluated == sorted(outcome.result.evaluate_metrics_clientapp)
    assert all(len(clients.asked("evaluate", t)) == CLIENTS for t in evaluated)


def test_names_are_ordered_as_numbers() -> None:
    outcome = run(sckm(clients_per_round=11), rounds=1, num_clients=12)
    assert outcome.records[0].sketched == [str(i) for i in range(12)]
    assert outcome.records[0].replied == sorted(outcome.picks[0], key=int)


# --- sameness -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [
        lambda seed: sckm(seed=seed, sketch=SketchSpec(ratio=0.1, seed=seed)),
        lambda seed: SCKMCluster(clients_per_round=3, min_clusters=2, seed=seed, sketch=SKETCH),
        lambda seed: ADCS(clients_per_round=3, kernel_every=2, seed=seed, sketch=SKETCH),
        lambda seed: Uniform(clients_per_round=2, seed=seed),
        lambda seed: RoundRobin(clients_per_round=2, seed=seed),
        lambda seed: sckm(seed=seed, candidate_fraction=0.5),
    ],
    ids=["sckm", "cluster", "adcs", "uniform", "round-robin", "candidates"],
)
def test_one_seed_one_outcome_whatever_the_node_ids(
    build: Callable[[int], TwoPhaseStrategy],
) -> None:
    node_ids = random.Random(3).sample(range(10, 10**12), CLIENTS)
    first = run(build(4), rounds=4)
    second = run(build(4), rounds=4, node_ids=node_ids)
    assert first.picks == second.picks
    for a, b in zip(first.models, second.models, strict=True):
        assert_same(a, b)
    other = run(build(5), rounds=4)
    assert other.models[-1]["w"].data != first.models[-1]["w"].data


def test_another_seed_picks_others() -> None:
    for build in (Uniform, SCKMSelect):
        picks = {str(run(build(clients_per_round=2, seed=s), rounds=4).picks) for s in range(3)}
        assert len(picks) == 3


def test_global_random_states_are_neither_read_nor_changed() -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    first = run(sckm(candidate_fraction=0.5))
    uniform = run(Uniform(clients_per_round=2))
    assert random.getstate() == before[0]
    for a, b in zip(np.random.get_state(), before[1], strict=True):  # noqa: NPY002
        np.testing.assert_array_equal(a, b)
    assert torch.equal(torch.get_rng_state(), before[2])
    random.seed(2)
    np.random.seed(2)  # noqa: NPY002
    torch.manual_seed(2)
    assert run(sckm(candidate_fraction=0.5)).picks == first.picks
    assert run(Uniform(clients_per_round=2)).picks == uniform.picks


def test_reuse_trains_nobody_twice_and_changes_nothing() -> None:
    with_reuse, without = StubClients(), StubClients()
    kept = run(sckm(reuse_update=True), with_reuse, rounds=4)
    fresh = run(sckm(reuse_update=False), without, rounds=4)
    assert kept.picks == fresh.picks
    for a, b in zip(kept.models, fresh.models, strict=True):
        assert_same(a, b)
    assert with_reuse.trained == {(t, str(i)): 1 for t in range(1, 5) for i in range(CLIENTS)}
    assert without.trained == {
        (t, str(i)): 1 + (str(i) in fresh.picks[t - 1]) for t in range(1, 5) for i in range(CLIENTS)
    }


# --- bytes ----------------------------------------------------------------------------------------


class CountingGrid(InlineGrid):
    """Adds up what passes, per message type and direction, from the payloads alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.down: dict[str, list[int]] = {}
        self.up: dict[str, list[int]] = {}

    def push_messages(self, messages: Any) -> list[str]:
        messages = list(messages)
        for message in messages:
            self.down.setdefault(message.metadata.message_type, []).append(array_bytes(message))
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Any) -> list[Message]:
        replies = super().pull_messages(message_ids)
        for reply in replies:
            self.up.setdefault(reply.metadata.message_type, []).append(array_bytes(reply))
        return replies


def array_bytes(message: Message) -> int:
    return sum(len(a.data) for r in message.content.array_records.values() for a in r.values())


def test_with_reuse_k_models_go_down_once_and_b_come_up_and_k_sketches() -> None:
    clients = StubClients()
    grid = CountingGrid(clients.app, CLIENTS)
    outcome = run(sckm(sketch=SketchSpec(ratio=0.005)), grid=grid, rounds=1)
    model = sum(len(array.data) for array in stub_model().values())
    assert grid.down["train.sketch"] == [model] * CLIENTS
    assert grid.down["train"] == [0] * 2
    assert grid.up["train"] == [model] * 2
    # 0.5% of 400 and of 10 entries: 2 + 1 float32 values in the 128-byte frame of a .npy file.
    assert grid.up["train.sketch"] == [128 + 4 * 3] * CLIENTS
    assert grid.down["evaluate"] == [model] * CLIENTS
    record = outcome.records[0]
    sent = {
        "sketch": grid.down["train.sketch"],
        "train": grid.down["train"],
        "evaluate": grid.down["evaluate"],
    }
    got = {"sketch": grid.up["train.sketch"], "train": grid.up["train"], "evaluate": [0]}
    for ledger, passed in ((record.bytes_down, sent), (record.bytes_up, got)):
        assert ledger.keys() == passed.keys()
        for phase, sizes in passed.items():
            rest = ledger[phase] - sum(sizes)  # configuration, metrics, names
            assert 0 < rest <= 600 * CLIENTS


def test_the_ledger_is_the_sum_over_the_messages() -> None:
    """Every key and value by hand for one phase; Flower counts keys as text and numbers as 8."""
    outcome = run(Uniform(clients_per_round=2), rounds=1, evaluate_every=0)
    record = outcome.records[0]
    # query.name: round and seed (8 each, keys 5 and 4); answers: num-examples, client name.
    assert record.bytes_down["query"] == CLIENTS * (5 + 8 + 4 + 8)
    assert record.bytes_up["query"] == CLIENTS * (len("num-examples") + 8 + len("name") + 1)
    model = stub_model()
    arrays = sum(len(name) + array_size(array) for name, array in model.items())
    config = 5 + 8 + 4 + 8 + len("needs") + len("kept") + 1
    assert record.bytes_down["train"] == 2 * (arrays + config)
    metrics = sum(len(key) + 8 for key in ("num-examples", "round", "train-loss"))
    assert record.bytes_up["train"] == 2 * (arrays + metrics + len("name") + 1)


def array_size(array: Array) -> int:
    """Return what Flower counts of an array: its bytes, its type's and its kind's names, shape."""
    return ArrayRecord({"": array}).count_bytes()


def test_without_reuse_the_model_goes_out_again_to_the_picked() -> None:
    clients = StubClients()
    grid = CountingGrid(clients.app, CLIENTS)
    run(sckm(reuse_update=False), grid=grid, rounds=1)
    model = sum(len(array.data) for array in stub_model().values())
    assert grid.down["train"] == [model] * 2


# --- clients that fail ----------------------------------------------------------------------------


def spoil(kind: str, change: Callable[[Message, RecordDict], RecordDict]) -> Fault:
    """Return a fault that spoils one kind of answer."""
    return lambda what, message, content: change(message, content) if what == kind else content


def raises(message: Message, content: RecordDict) -> RecordDict:
    raise ArithmeticError("no luck")


def sketch_values(change: Callable[[np.ndarray], np.ndarray]) -> Fault:
    def spoiled(message: Message, content: RecordDict) -> RecordDict:
        values = change(content["sketch"]["values"].numpy().copy())
        content["sketch"] = ArrayRecord({"values": Array(values)})
        return content

    return spoil("sketch", spoiled)


def weights(change: Callable[[np.ndarray], np.ndarray]) -> Fault:
    def spoiled(message: Message, content: RecordDict) -> RecordDict:
        arrays = ArrayRecord(dict(content["arrays"]))
        arrays["w"] = Array(change(content["arrays"]["w"].numpy().copy()))
        content["arrays"] = arrays
        return content

    return spoil("train", spoiled)


def without(kind: str, record: str) -> Fault:
    def spoiled(message: Message, content: RecordDict) -> RecordDict:
        del content[record]
        return content

    return spoil(kind, spoiled)


def metric(kind: str, key: str, value: float | None) -> Fault:
    def spoiled(message: Message, content: RecordDict) -> RecordDict:
        metrics = dict(content["metrics"])
        metrics.pop(key)
        if value is not None:
            metrics[key] = value
        content["metrics"] = MetricRecord(metrics)  # type: ignore[arg-type]
        return content

    return spoil(kind, spoiled)


def put(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array.flat[3] = value
        return array

    return change


def forged_sketch(message: Message, content: RecordDict) -> RecordDict:
    honest = content["sketch"]["values"]
    forged = Array(np.zeros(5, np.float32))
    content["sketch"] = ArrayRecord(
        {"values": Array(honest.dtype, tuple(honest.shape), honest.stype, forged.data)}
    )
    return content


def first_pick() -> str:
    """Return who is picked first in round 1 when everybody is honest."""
    return run(sckm(), rounds=1).picks[0][0]


PHASE_1: dict[str, tuple[Fault, str]] = {
    "raises": (spoil("sketch", raises), "no luck"),
    "nan": (sketch_values(put(np.nan)), "sketch holds 1 NaN or infinite values"),
    "inf": (sketch_values(put(np.inf)), "sketch holds 1 NaN or infinite values"),
    "short": (sketch_values(lambda v: v[:-1]), "shape (40,): expected float32 with shape (41,)"),
    "long": (sketch_values(lambda v: np.append(v, v)), "shape (82,): expected"),
    "matrix": (sketch_values(lambda v: v[None]), "shape (1, 41): expected"),
    "float64": (sketch_values(lambda v: v.astype(np.float64)), "sketch of float64"),
    "forged shape": (spoil("sketch", forged_sketch), "sketch with 5 entries: expected 41"),
    "huge": (sketch_values(lambda v: 1e6 * v), "times the median"),
    "another round": (metric("sketch", "round", 77), "for round 77, not"),
    "no round": (metric("sketch", "round", None), "for round None, not"),
    "no sketch": (without("sketch", "sketch"), "the reply has no sketch"),
    "no metrics": (without("sketch", "metrics"), "the reply has no metrics"),
    "no examples": (metric("sketch", "num-examples", None), "lacks the number 'num-examples'"),
    "examples 0": (metric("sketch", "num-examples", 0), "num-examples = 0"),
    "examples nan": (metric("sketch", "num-examples", float("nan")), "num-examples = nan"),
}


@pytest.mark.parametrize("fault", PHASE_1)
def test_a_bad_answer_to_the_roll_call_is_left_out_and_named(fault: str) -> None:
    victim = first_pick()
    change, reason = PHASE_1[fault]
    outcome = run(sckm(), StubClients({victim: change}), rounds=3)
    for record in outcome.records:
        (label,) = record.failed
        assert label in (victim, f"node {1001 + int(victim)}")
        assert reason in record.failed[label]
        assert "\n" not in record.failed[label]
        assert victim not in record.sketched
        assert victim not in record.selected
        assert len(record.replied) == 2
        assert record.skipped is None


def test_leaving_a_client_out_equals_its_absence() -> None:
    nan = StubClients({"5": sketch_values(put(np.nan))})
    with_fault = run(sckm(), nan, rounds=3)
    absent = run(sckm(), rounds=3, num_clients=CLIENTS - 1)
    assert with_fault.picks == absent.picks
    assert_same(with_fault.result.arrays, absent.result.arrays)


PHASE_2: dict[str, tuple[Fault, str]] = {
    "raises": (spoil("train", raises), "no luck"),
    "nan": (weights(put(np.nan)), "array 'w' holds 1 NaN or infinite values"),
    "-inf": (weights(put(-np.inf)), "array 'w' holds 1 NaN or infinite values"),
    "wrong shape": (weights(np.ravel), "array 'w' is float32 (400,): expected float32 (40, 10)"),
    "wrong length": (weights(lambda w: w[:-1]), "array 'w' is float32 (39, 10)"),
    "float64": (weights(lambda w: w.astype(np.float64)), "array 'w' is float64"),
    "another round": (metric("train", "round", 1_000), "for round 1000, not"),
    "no model": (without("train", "arrays"), "the reply has no model"),
    "no examples": (metric("train", "num-examples", None), "lacks the number 'num-examples'"),
    "loss nan": (metric("train", "train-loss", float("nan")), "train-loss = nan"),
}


@pytest.mark.parametrize("fault", PHASE_2)
def test_a_bad_model_is_left_out_and_named(fault: str) -> None:
    victim = first_pick()
    change, reason = PHASE_2[fault]
    outcome = run(sckm(clients_per_round=3), StubClients({victim: change}), rounds=1)
    (record,) = outcome.records
    assert victim in record.selected
    assert list(record.failed) == [victim]
    assert reason in record.failed[victim]
    assert record.replied == sorted(set(record.selected) - {victim})
    assert record.skipped is None
    stack = [trained_model(stub_model(), 0, 1, name)["w"].numpy() for name in record.replied]
    want = np.average(stack, axis=0, weights=[examples_of(name) for name in record.replied])
    np.testing.assert_allclose(outcome.models[0]["w"].numpy(), want, rtol=1e-6, atol=1e-6)


def test_a_missing_or_additional_array_is_named() -> None:
    def rename(message: Message, content: RecordDict) -> RecordDict:
        arrays = dict(content["arrays"])
        arrays["v"] = arrays.pop("w")
        content["arrays"] = ArrayRecord(arrays)
        return content

    victim = first_pick()
    outcome = run(
        sckm(clients_per_round=3), StubClients({victim: spoil("train", rename)}), rounds=1
    )
    assert "differ from the model's: v, w" in outcome.records[0].failed[victim]


def test_a_client_without_a_name_is_named_by_its_node() -> None:
    for fault in (
        without("sketch", "client"),
        spoil("sketch", lambda m, c: RecordDict({**c, "client": ConfigRecord({"name": ""})})),
        spoil("sketch", lambda m, c: RecordDict({**c, "client": ConfigRecord({"name": 5})})),
    ):
        outcome = run(sckm(), StubClients({"5": fault}), rounds=2)
        for record in outcome.records:
            assert record.failed == {"node 1006": "the reply does not name its client"}


def named(name: str) -> Fault:
    def rename(kind: str, message: Message, content: RecordDict) -> RecordDict:
        content["client"] = ConfigRecord({"name": name})
        return content

    return rename


@pytest.mark.parametrize("build", [sckm, lambda: Uniform(clients_per_round=3)])
def test_two_nodes_of_one_name_are_both_left_out(build: Callable[[], TwoPhaseStrategy]) -> None:
    outcome = run(build(), StubClients({"5": named("4")}), rounds=3)
    for record in outcome.records:
        assert "two nodes go by this name" in record.failed["4"]
        assert "4" not in record.selected
        assert "5" not in record.selected
        assert record.skipped is None


def test_a_client_that_lost_what_it_kept_gets_the_model_and_trains() -> None:
    class Forgetful(InlineGrid):
        def push_messages(self, messages: Any) -> list[str]:
            messages = list(messages)
            if messages and messages[0].metadata.message_type == "train":
                for context in self._contexts.values():
                    context.state.clear()
            return super().push_messages(messages)

    clients = StubClients()
    forgotten = run(sckm(), rounds=2, grid=Forgetful(clients.app, CLIENTS))
    kept = run(sckm(), rounds=2)
    assert forgotten.picks == kept.picks
    assert_same(forgotten.result.arrays, kept.result.arrays)
    for record in forgotten.records:
        assert record.failed == {}
        assert record.replied == sorted(record.selected)
        assert len(clients.asked("train", record.round)) == 4  # the two picked, twice


def test_a_client_that_never_has_the_model_is_not_asked_forever() -> None:
    def insatiable(message: Message, content: RecordDict) -> RecordDict:
        content["metrics"]["needs-model"] = 1
        del content["arrays"]
        return content

    victim = first_pick()
    clients = StubClients({victim: spoil("train", insatiable)})
    outcome = run(sckm(clients_per_round=3), clients, rounds=1)
    assert clients.asked("train", 1).count(victim) == 2
    assert outcome.records[0].failed == {victim: "the reply has no model"}
    assert len(outcome.records[0].replied) == 2


def test_below_the_quorum_the_round_is_skipped_and_training_goes_on() -> None:
    bad_in_round_2 = {
        str(i): lambda kind, m, c: raises(m, c) if turn_of(m) == 2 and kind == "sketch" else c
        for i in range(4)
    }
    outcome = run(sckm(), StubClients(bad_in_round_2), rounds=3)
    first, second, third = outcome.records
    assert second.skipped == "2 of 6 clients answered the roll call, quorum 3"
    assert second.selected == []
    assert set(second.failed) == {"0", "1", "2", "3"}
    assert "skipped" in second.to_json()
    assert "skipped" not in first.to_json()
    assert_same(outcome.models[1], outcome.models[0])
    assert third.skipped is None
    assert outcome.models[2]["w"].data != outcome.models[1]["w"].data


def test_too_few_models_skip_the_round() -> None:
    faults = {str(i): spoil("train", raises) for i in range(CLIENTS)}
    outcome = run(sckm(clients_per_round=4), StubClients(faults), rounds=2)
    for record, model in zip(outcome.records, outcome.models, strict=True):
        assert record.skipped == "0 of 4 models came back, quorum 2"
        assert_same(model, stub_model())


@pytest.mark.parametrize(
    ("quorum", "failing", "skipped"),
    [
        (1.0, 1, True),
        (1.0, 0, False),
        (0.5, 2, False),
        (0.5, 3, True),
        (0.0, 3, False),
        (0.0, 4, True),
    ],
)
def test_the_quorum_counts_models(quorum: float, failing: int, skipped: bool) -> None:
    everyone = [str(i) for i in range(4)]
    faults = {name: spoil("train", raises) for name in everyone[:failing]}
    outcome = run(
        sckm(clients_per_round=4, quorum=quorum), StubClients(faults), rounds=1, num_clients=4
    )
    assert (outcome.records[0].skipped is not None) is skipped


def test_replacements_come_in_order_of_score() -> None:
    honest = run(sckm(), rounds=1).records[0]
    ranked = sorted(honest.scores, key=honest.scores.__getitem__, reverse=True)
    faults = {name: spoil("train", raises) for name in ranked[:3]}
    for replacements, want in ((0, 2), (1, 3), (2, 4), (9, 5)):
        outcome = run(sckm(replacements=replacements, quorum=0), StubClients(faults), rounds=1)
        record = outcome.records[0]
        assert record.selected == ranked[:want]
        assert record.replied == sorted(ranked[3:want])
        assert set(record.failed) == set(ranked[: min(want, 3)])


def test_a_failed_evaluation_leaves_the_others() -> None:
    outcome = run(sckm(), StubClients({"5": spoil("evaluate", raises)}), rounds=1)
    record = outcome.records[0]
    assert record.failed.keys() == {"5"}
    assert record.failed["5"].startswith("evaluate: ")
    assert record.metrics["worst-accuracy"] == 1 / 5
    assert record.skipped is None


def turn_of(message: Message) -> int:
    return int(message.content["config"]["round"])


# --- aggregation ----------------------------------------------------------------------------------

AGGREGATORS: dict[str, Callable[[], Strategy]] = {
    "fedavg": flower.FedAvg,
    "fedavgm": lambda: flower.FedAvgM(server_learning_rate=0.7, server_momentum=0.9),
    "fedadam": flower.FedAdam,
    "fedadagrad": flower.FedAdagrad,
    "fedyogi": flower.FedYogi,
    "fedmedian": flower.FedMedian,
    "fedtrimmedavg": flower.FedTrimmedAvg,
    "krum": lambda: flower.Krum(num_malicious_nodes=1),
    "multikrum": lambda: flower.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=4),
    "bulyan": lambda: flower.Bulyan(num_malicious_nodes=0),
}
STATEFUL = ("fedavgm", "fedadam", "fedadagrad", "fedyogi")


@pytest.mark.parametrize("name", AGGREGATORS)
def test_every_aggregator_gives_flowers_own_aggregate(name: str) -> None:
    reference: Any = AGGREGATORS[name]()
    reference.fraction_train = 0.0
    outcome = run(sckm(clients_per_round=5, aggregator=AGGREGATORS[name]()), rounds=2)
    model = stub_model()
    for record, found in zip(outcome.records, outcome.models, strict=True):
        assert record.skipped is None, record.failed
        assert len(record.replied) == 5
        reference.current_arrays = None  # FedAvgM would go on from its own, unrounded model
        list(reference.configure_train(record.round, model, ConfigRecord(), None))
        replies = []
        for client in record.replied:
            content = RecordDict(
                {
                    "arrays": trained_model(model, 0, record.round, client),
                    "metrics": MetricRecord({"num-examples": float(examples_of(client))}),
                }
            )
            ask = Message(RecordDict(), 1 + int(client), "train")
            ask.metadata.__dict__["_message_id"] = client
            replies.append(Message(content, reply_to=ask))
        want, _ = reference.aggregate_train(record.round, replies)
        for key, array in found.items():
            assert array.dtype == model[key].dtype
            value = want[key].numpy()
            value = np.rint(value) if array.dtype == "int64" else value
            np.testing.assert_array_equal(array.numpy(), value.astype(array.dtype), err_msg=key)
        model = found


@pytest.mark.parametrize("name", STATEFUL)
def test_a_skipped_round_leaves_the_server_optimiser_as_it_was(name: str) -> None:
    def fails_in_2(kind: str, message: Message, content: RecordDict) -> RecordDict:
        return raises(message, content) if kind == "train" and turn_of(message) == 2 else content

    faults = {str(i): fails_in_2 for i in range(CLIENTS)}
    strategy = sckm(aggregator=AGGREGATORS[name]())
    states: list[dict[str, Any]] = []
    run(
        strategy,
        StubClients(faults),
        rounds=2,
        evaluate_fn=lambda *_: states.append(copy.deepcopy(strategy.state_dict()["aggregator"])),
    )
    assert repr(states[0]) == repr(states[1])
    assert states[0]


class Weighed(TwoPhaseStrategy):
    """Picks clients 1, 3 and 4 with coefficients."""

    COEFFICIENTS = (0.5, 0.1, 0.7)

    def needs(self, server_round: int) -> frozenset[str]:
        return frozenset({"loss"})

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        return Selection(np.array([4, 1, 3]), coefficients=np.array(self.COEFFICIENTS))


@pytest.mark.parametrize("failing", [None, "1"])
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_coefficients_weigh_the_updates(failing: str | None, weighting: Any) -> None:
    """w + sum_i c_i (w_i - w), over those that came back; a failing client's term is missing."""
    clients = StubClients({failing: spoil("train", raises)} if failing else {})
    strategy = Weighed(clients_per_round=3, weighting=weighting, replacements=2)
    outcome = run(strategy, clients, rounds=1)
    start = stub_model()
    want = start["w"].numpy().astype(np.float64)
    for name, coefficient in zip("413", Weighed.COEFFICIENTS, strict=True):
        if name != failing:
            local = trained_model(start, 0, 1, name)["w"].numpy().astype(np.float64)
            want += coefficient * (local - start["w"].numpy())
    np.testing.assert_allclose(outcome.models[0]["w"].numpy(), want, rtol=1e-5, atol=1e-5)
    assert outcome.picks == [["4", "1", "3"]]


# --- who is asked ---------------------------------------------------------------------------------


def test_without_phase_1_names_are_asked_once_per_new_node() -> None:
    clients = StubClients()
    grid = InlineGrid(clients.app, CLIENTS)
    run(Uniform(clients_per_round=2), clients, grid=grid, rounds=3)
    asked = [(turn, name) for turn, kind, name in clients.messages if kind == "name"]
    assert asked == [(1, str(i)) for i in range(CLIENTS)]
    assert not any(kind == "sketch" for _, kind, _ in clients.messages)


def test_a_reconnected_client_is_asked_again_and_keeps_its_history() -> None:
    """With round-robin and two a round, six clients take turns; new node ids change nothing."""
    clients = StubClients()
    grid = InlineGrid(clients.app, CLIENTS)

    def reconnect(server_round: int, model: ArrayRecord) -> None:
        if server_round == 1:
            context = grid._contexts.pop(1001)
            context.node_id = 5
            grid._contexts[5] = context

    outcome = run(
        RoundRobin(clients_per_round=2), clients, grid=grid, rounds=3, evaluate_fn=reconnect
    )
    assert outcome.picks == [["0", "1"], ["2", "3"], ["4", "5"]]
    assert clients.asked("name", 2) == ["0"]
    assert clients.asked("name", 3) == []


def test_a_strategy_that_knows_the_names_from_the_roll_call_does_not_ask_for_them() -> None:
    clients = StubClients()
    run(sckm(), clients)
    assert not any(kind == "name" for _, kind, _ in clients.messages)


@pytest.mark.parametrize(("fraction", "count"), [(0.5, 5), (0.31, 3), (0.05, 2), (1.0, 10)])
def test_the_candidate_fraction_draws_who_is_asked(fraction: float, count: int) -> None:
    """At least the cohort; uniform: every client is asked in the long run, nobody always."""
    clients = StubClients()
    outcome = run(
        sckm(candidate_fraction=fraction), clients, rounds=30, num_clients=10, evaluate_every=0
    )
    times = dict.fromkeys(map(str, range(10)), 0)
    for record in outcome.records:
        asked = clients.asked("sketch", record.round)
        assert sorted(asked) == record.sketched
        assert len(asked) == count
        assert len(record.eligible) == 10
        for name in asked:
            times[name] += 1
    assert min(times.values()) > 0
    if fraction < 1:
        assert max(times.values()) < 30


def test_too_few_clients_are_told_in_one_line() -> None:
    with pytest.raises(TooFewClientsError) as error:
        run(sckm(clients_per_round=CLIENTS + 1, wait=0.0))
    assert str(error.value) == (
        "clients-per-round = 7: 6 clients are connected after 0 s; allowed is at most 6"
    )


def test_a_busy_client_is_left_out_and_named() -> None:
    """A client that never answers (its handler returned nothing) is busy until its message ends."""
    clients = StubClients()
    honest = clients.app

    class Silent:
        def __call__(self, message: Message, context: Any) -> Any:
            sketch = message.metadata.message_type == "train.sketch"
            silent = sketch and context.node_config["partition-id"] == 5
            return None if silent else honest(message, context)

    grid = InlineGrid(Silent(), CLIENTS)  # type: ignore[arg-type]
    outcome = run(sckm(deadline=60.0, grace=0.05), grid=grid, rounds=2)
    first, second = outcome.records
    assert "no reply within" in first.failed["node 1006"]
    assert second.failed == {"node 1006": "still busy with an earlier message"}
    assert first.skipped is second.skipped is None
    assert "5" not in second.eligible


# --- state and feedback ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [
        lambda: sckm(),
        lambda: SCKMCluster(clients_per_round=3, min_clusters=2, sketch=SKETCH),
        lambda: ADCS(clients_per_round=3, kernel_every=4, sketch=SKETCH),
        lambda: Uniform(clients_per_round=2),
        lambda: RoundRobin(clients_per_round=2),
        *(
            (lambda build=build: Uniform(clients_per_round=5, aggregator=build()))
            for build in map(AGGREGATORS.__getitem__, STATEFUL)
        ),
    ],
    ids=["sckm", "cluster", "adcs", "uniform", "round-robin", *STATEFUL],
)
def test_a_strategy_restored_goes_on_as_if_unbroken(build: Callable[[], TwoPhaseStrategy]) -> None:
    whole = run(build(), rounds=6)
    broken = build()
    first = run(broken, rounds=3)
    state = copy.deepcopy(broken.state_dict())
    node_ids = [10 * i + 3 for i in range(CLIENTS)][::-1]
    resumed = build()
    resumed.load_state_dict(state)
    rest = run(resumed, rounds=6, first_round=4, model=first.result.arrays, node_ids=node_ids)
    assert first.picks + rest.picks == whole.picks
    assert_same(rest.result.arrays, whole.result.arrays)
    for a, b in zip(rest.records, whole.records[3:], strict=True):
        assert a.scores == b.scores
        assert a.diagnostics == b.diagnostics


class Observer(Uniform):
    train_needs = frozenset({"loss"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[Feedback] = []

    def observe(self, feedback: Feedback) -> None:
        self.seen.append(feedback)


def test_feedback_holds_the_cohorts_updates() -> None:
    def with_loss(kind: str, message: Message, content: RecordDict) -> RecordDict:
        if kind == "train":
            assert message.content["config"]["needs"] == ["loss"]
            content["metrics"]["loss"] = 2.5
        return content

    strategy = Observer(clients_per_round=3)
    clients = StubClients({str(i): with_loss for i in range(CLIENTS)})
    outcome = run(
        strategy, clients, rounds=2, evaluate_fn=lambda *_: MetricRecord({"accuracy": 0.25})
    )
    model = stub_model()
    for feedback, record, after in zip(strategy.seen, outcome.records, outcome.models, strict=True):
        assert feedback.round == record.round
        assert list(feedback.names) == record.replied
        assert feedback.examples.tolist() == [examples_of(name) for name in record.replied]
        assert feedback.losses.tolist() == [2.5] * 3
        assert np.isnan(feedback.loss_rms).all()
        assert (feedback.seconds >= 0).all()
        assert feedback.accuracy == 0.25
        assert feedback.loss is None
        assert feedback.candidates is None
        assert len(feedback.updates) == 3
        for name, update in zip(feedback.names, feedback.updates, strict=True):
            local = trained_model(model, 0, record.round, name)
            assert set(update) == {"w", "b"}
            np.testing.assert_array_equal(update["w"], model["w"].numpy() - local["w"].numpy())
        np.testing.assert_array_equal(
            feedback.global_update["w"], model["w"].numpy() - after["w"].numpy()
        )
        model = after


# --- Flower's own loop ----------------------------------------------------------------------------


@pytest.mark.parametrize("build", [sckm, lambda: Uniform(clients_per_round=2)])
def test_flowers_own_loop_gives_the_same_models(build: Callable[[], TwoPhaseStrategy]) -> None:
    ours = run(build(), rounds=3)
    clients = StubClients({"0": spoil("evaluate", raises)})
    grid = InlineGrid(clients.app, CLIENTS)
    theirs = Strategy.start(build(), grid, stub_model(), num_rounds=3)
    assert_same(theirs.arrays, ours.result.arrays)
    assert theirs.train_metrics_clientapp == ours.result.train_metrics_clientapp
    assert sorted(theirs.evaluate_metrics_clientapp) == [1, 2, 3]


def test_a_subclass_needs_a_selector_or_overrides() -> None:
    strategy = TwoPhaseStrategy(clients_per_round=2)
    with pytest.raises(TypeError, match="has no selector and does not override needs"):
        strategy.needs(1)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("clients_per_round", 0),
        ("candidate_fraction", 0.0),
        ("candidate_fraction", 1.5),
        ("candidate_fraction", float("nan")),
        ("quorum", -0.1),
        ("quorum", 1.1),
        ("deadline", 0.0),
        ("grace", -1.0),
        ("replacements", -1),
        ("max_norm_ratio", 1.0),
        ("sketch_of", "weights"),
        ("weighting", "size"),
    ],
)
def test_a_bad_option_is_named(option: str, value: object) -> None:
    options: Mapping[str, Any] = {"clients_per_round": 2, option: value}
    with pytest.raises(ValueError, match=rf"^{option} = {value!r}: must be "):
        SCKMSelect(**options)
