"""The real client on digits, message by message."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import nn

from client.app import app
from client.identity import client_name
from server.config import RunConfig
from simulation.inline import InlineGrid
from strategies.randomness import derive_rng
from strategies.sketch import SketchSpec
from tasks.client_data import ClientData, client_data
from tasks.learning import get_weights
from tasks.models import build_model

CLIENTS, STEPS, RATE, SEED = 5, 4, 0.25, 3
CONFIG: dict[str, Any] = {
    "round": 2,
    "seed": SEED,
    "local-steps": STEPS,
    "batch-size": 16,
    "learning-rate": RATE,
    "client-threads": 1,
    "num-classes": 10,
    "needs": [],
}
ROLL_CALL: dict[str, Any] = {
    "needs": ["loss", "norm", "sketch"],
    "sketch-ratio": 0.05,
    "sketch-kind": "subsample",
    "sketch-layers": [],
    "sketch-seed": 8,
    "sketch-of": "update",
    "keep": True,
    "train-needs": [],
}


def initial(model: str = "softmax") -> ArrayRecord:
    module = build_model(model, (1, 8, 8), 10, seed=1)
    return ArrayRecord({name: Array(value) for name, value in get_weights(module).items()})


def clients(**values: Any) -> InlineGrid:
    config = RunConfig(**values).to_run_config()
    return InlineGrid(app, CLIENTS, run_config=config)


def ask(
    grid: InlineGrid,
    kind: str,
    config: dict[str, Any] | None = None,
    arrays: ArrayRecord | None = None,
    partition: int = 2,
) -> Message:
    content = RecordDict({"config": ConfigRecord({**CONFIG, **(config or {})})})
    if arrays is not None:
        content["arrays"] = arrays
    (reply,) = grid.send_and_receive([Message(content, 1001 + partition, kind)])
    return reply


def data(partition: int = 2) -> ClientData:
    return client_data(
        "digits", "", "shards", partition, CLIENTS, shards_per_client=2, alpha=0.5, seed=0
    )


def by_hand(arrays: ArrayRecord, steps: int = STEPS) -> tuple[dict[str, np.ndarray], list[float]]:
    """Softmax regression in NumPy, float64: the weights after SGD, and the mini-batch losses."""
    weight = arrays["classifier.weight"].numpy().astype(np.float64)
    bias = arrays["classifier.bias"].numpy().astype(np.float64)
    own = data()
    order = derive_rng(SEED, 2, "2", "batches").permutation(len(own.y_train))
    losses = []
    for step in range(steps):
        rows = order[16 * step : 16 * (step + 1)]
        x = own.x_train[rows].reshape(len(rows), -1).astype(np.float64)
        scores = x @ weight.T + bias
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        losses.append(float(-np.log(p[range(len(rows)), own.y_train[rows]]).mean()))
        p[range(len(rows)), own.y_train[rows]] -= 1
        weight = weight - RATE * p.T @ x / len(rows)
        bias = bias - RATE * p.mean(axis=0)
    return {"classifier.weight": weight, "classifier.bias": bias}, losses


def test_training_is_sgd_on_the_batches_of_seed_round_and_name() -> None:
    reply = ask(clients(), "train", {"kept": False}, initial())
    want, losses = by_hand(initial())
    for name, array in reply.content["arrays"].items():
        assert array.dtype == "float32"
        np.testing.assert_allclose(array.numpy(), want[name], rtol=1e-4, atol=1e-5)
    metrics = reply.content["metrics"]
    assert metrics["train-loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert metrics["num-examples"] == len(data().y_train)
    assert metrics["round"] == 2
    assert reply.content["client"]["name"] == "2"


def test_the_roll_call_reports_the_update_in_gradient_units() -> None:
    reply = ask(clients(), "train.sketch", ROLL_CALL, initial())
    trained, _ = by_hand(initial())
    update = {k: (a.numpy() - trained[k]) / RATE for k, a in initial().items()}
    spec = SketchSpec(ratio=0.05, seed=8)
    np.testing.assert_allclose(
        reply.content["sketch"]["values"].numpy(), spec.apply(2, update), rtol=1e-3, atol=1e-4
    )
    norm = np.sqrt(sum(np.square(value).sum() for value in update.values()))
    assert reply.content["metrics"]["norm"] == pytest.approx(norm, rel=1e-4)
    own = data()
    scores = own.x_train.reshape(len(own.y_train), -1) @ initial()["classifier.weight"].numpy().T
    logits = torch.from_numpy(scores + initial()["classifier.bias"].numpy())
    loss = nn.functional.cross_entropy(logits, torch.from_numpy(own.y_train)).item()
    assert reply.content["metrics"]["loss"] == pytest.approx(loss, rel=1e-5)
    assert "arrays" not in reply.content


def test_a_gradient_sketch_is_that_of_one_step() -> None:
    config = {**ROLL_CALL, "sketch-of": "gradient", "keep": False}
    reply = ask(clients(), "train.sketch", config, initial())
    after, _ = by_hand(initial(), steps=1)
    gradient = {k: (a.numpy() - after[k]) / RATE for k, a in initial().items()}
    want = SketchSpec(ratio=0.05, seed=8).apply(2, gradient)
    np.testing.assert_allclose(
        reply.content["sketch"]["values"].numpy(), want, rtol=1e-3, atol=1e-5
    )


def test_what_is_kept_is_what_training_anew_gives_bit_for_bit() -> None:
    grid = clients()
    ask(grid, "train.sketch", ROLL_CALL, initial())
    kept = ask(grid, "train", {"kept": True})
    fresh = ask(clients(), "train", {"kept": False}, initial())
    assert {k: a.data for k, a in kept.content["arrays"].items()} == {
        k: a.data for k, a in fresh.content["arrays"].items()
    }
    assert kept.content["metrics"] == fresh.content["metrics"]


def test_what_is_kept_is_sent_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = clients()
    ask(grid, "train.sketch", ROLL_CALL, initial())
    monkeypatch.delattr("client.training")
    monkeypatch.setitem(sys.modules, "client.training", None)
    assert ask(grid, "train", {"kept": True}).has_content()
    assert ask(grid, "train", {"kept": False}, initial()).has_error()


@pytest.mark.parametrize("case", ["nothing kept", "another round", "keep off"])
def test_a_client_that_holds_nothing_for_the_round_asks_for_the_model(case: str) -> None:
    grid = clients()
    if case == "another round":
        ask(grid, "train.sketch", {**ROLL_CALL, "round": 1}, initial())
    if case == "keep off":
        ask(grid, "train.sketch", {**ROLL_CALL, "keep": False}, initial())
    reply = ask(grid, "train", {"kept": True})
    assert reply.content["metrics"]["needs-model"] == 1
    assert "arrays" not in reply.content


def test_only_what_is_asked_for_is_sent_and_a_loss_alone_trains_nobody() -> None:
    grid = clients()
    reply = ask(grid, "train.sketch", {**ROLL_CALL, "needs": ["loss"]}, initial())
    assert set(reply.content) == {"client", "metrics"}
    assert set(reply.content["metrics"]) == {"round", "num-examples", "loss"}
    # What it kept is the model received, from which it trains in phase 2.
    kept = ask(grid, "train", {"kept": True})
    fresh = ask(clients(), "train", {"kept": False}, initial())
    assert kept.content["arrays"] == fresh.content["arrays"]


def test_losses_asked_of_phase_2_are_those_before_training() -> None:
    config = {"kept": False, "needs": ["loss", "loss-rms"]}
    metrics = ask(clients(), "train", config, initial()).content["metrics"]
    loss = ask(clients(), "train.sketch", ROLL_CALL, initial()).content["metrics"]["loss"]
    assert metrics["loss"] == pytest.approx(loss)
    assert metrics["loss-rms"] >= metrics["loss"]


def test_clients_differ_and_rounds_differ() -> None:
    grid = clients()
    replies = [
        ask(grid, "train", {"kept": False, "round": turn}, initial(), partition)
        for partition, turn in ((0, 1), (1, 1), (0, 2), (0, 1))
    ]
    bits = [reply.content["arrays"]["classifier.weight"].data for reply in replies]
    assert len(set(bits)) == 3
    assert bits[0] == bits[3]


def test_evaluation_is_on_the_clients_own_test_data() -> None:
    reply = ask(clients(), "evaluate", arrays=initial())
    own = data()
    x = own.x_test.reshape(len(own.y_test), -1)
    scores = x @ initial()["classifier.weight"].numpy().T + initial()["classifier.bias"].numpy()
    assert reply.content["metrics"]["accuracy"] == pytest.approx(
        (scores.argmax(axis=1) == own.y_test).mean()
    )
    assert reply.content["metrics"]["num-examples"] == len(own.y_test)


def test_the_name_comes_with_the_number_of_examples() -> None:
    reply = ask(clients(), "query.name")
    assert reply.content["client"]["name"] == "2"
    assert reply.content["metrics"]["num-examples"] == len(data().y_train)


@pytest.mark.parametrize("kind", ["train", "train.sketch", "evaluate", "query.name"])
def test_every_handler_answers_an_error_that_names_the_client(kind: str) -> None:
    grid = clients()
    grid._contexts[1003].node_config["partition-id"] = 99
    reply = ask(grid, kind, {**ROLL_CALL, "kept": False}, initial())
    assert reply.has_error()
    assert str(reply.error.reason).startswith("99: ValueError: ")


def test_a_model_that_does_not_fit_is_an_error() -> None:
    wrong = ArrayRecord({"classifier.weight": Array(np.zeros((10, 3), np.float32))})
    reply = ask(clients(), "train", {"kept": False}, wrong)
    assert "the weights do not fit the model" in str(reply.error.reason)
    missing = ask(clients(), "train", {"kept": False})
    assert missing.has_error()


def test_more_classes_than_the_server_knows_are_an_error() -> None:
    reply = ask(clients(), "evaluate", {"num-classes": 2}, initial(), partition=4)
    assert "must be below 2" in str(reply.error.reason)


def test_global_random_states_stay_as_they_are() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index, union-attr]  # noqa: NPY002
    ask(clients(), "train.sketch", ROLL_CALL, initial())
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # type: ignore[index]  # noqa: NPY002


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ({"client-name": "north", "partition-id": 3}, "north"),
        ({"client-name": "", "partition-id": 3}, "3"),
        ({"partition-id": 0}, "0"),
        ({}, "1001"),
    ],
)
def test_a_name_is_given_or_the_partition_or_the_node(node: dict[str, Any], name: str) -> None:
    context = clients()._contexts[1001]
    context.node_config = node
    assert client_name(context) == name


def batch_norm(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, num_classes), nn.BatchNorm1d(num_classes)
    )


@pytest.mark.parametrize("of", ["update", "gradient"])
def test_a_model_with_buffers_is_sketched_as_the_server_expects(
    of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running means are floating-point arrays of the model, but have no gradient."""
    module = types.ModuleType("batch_norm_model")
    module.batch_norm = batch_norm  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "batch_norm_model", module)
    spec = "batch_norm_model:batch_norm"
    arrays = initial(spec)
    config = {**ROLL_CALL, "sketch-of": of, "keep": of == "update"}
    reply = ask(clients(model=spec), "train.sketch", config, arrays)
    assert not reply.has_error(), reply.error
    shapes = {k: tuple(a.shape) for k, a in arrays.items() if a.dtype == "float32"}
    entries = sum(SketchSpec(ratio=0.05).sizes(shapes).values())
    assert reply.content["sketch"]["values"].numpy().shape == (entries,)
