"""All strategies end to end on digits in this process, unbroken and resumed from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from client.app import app
from client.training import losses as per_example_losses
from server.checkpoint import load_latest, save_checkpoint
from server.config import STRATEGIES, RunConfig
from server.factory import build_strategy
from simulation.inline import InlineGrid
from strategies import Feedback, RoundRecord, TwoPhaseStrategy
from strategies.roster import Roster
from tasks.client_data import client_data
from tasks.config import TaskConfig
from tasks.data import load_test_data
from tasks.learning import evaluate, get_weights, set_weights
from tasks.models import build_model

CLIENTS, BUDGET, ROUNDS = 8, 3, 9

# Variants that behave differently, beside each strategy with its defaults.
CASES: dict[str, dict[str, Any]] = {name: {"strategy": name} for name in STRATEGIES} | {
    "adcs-kernel-every": {"strategy": "adcs", "kernel-every": 3},
    "cpow-d": {"strategy": "power-of-choice", "variant": "cpow-d", "candidate-fraction": 0.5},
    "rpow-d": {"strategy": "power-of-choice", "variant": "rpow-d", "candidate-fraction": 0.75},
    "ocs-probabilistic": {"strategy": "ocs", "probabilistic": True},
    "divfl-no-overheads": {"strategy": "divfl", "no-overheads": True},
}
NO_ROLL_CALL = {
    *("uniform", "round-robin", "rpow-d", "afl", "divfl-no-overheads", "gpfl", "oort", "fedcs")
}
WITHOUT_SKETCHES = NO_ROLL_CALL | {
    "power-of-choice",
    "cpow-d",
    "ocs",
    "ocs-probabilistic",
    "fedcor",
}
# Rounds with a roll call, where it is not every round.
ROLL_CALLS = {
    "adcs-kernel-every": {1, 4, 7},
    "static-dpp": {1},
    "fedcor": {1, 2, 3, 5, 6, 8, 9},  # warm-up 2, so fits in rounds 3, 6 and 9
}


@pytest.fixture(autouse=True)
def _steady_reply_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured times differ from run to run, and Oort and FedCS go by them."""
    note = Roster.time

    def steady(self: Roster, name: str, seconds: float) -> None:
        assert seconds >= 0
        note(self, name, 1.0 + int(name) % 3)

    monkeypatch.setattr(Roster, "time", steady)


def configured(case: str) -> RunConfig:
    return RunConfig.parse(
        {
            "clients-per-round": BUDGET,
            "local-steps": 5,
            "sketch-ratio": 0.05,
            "warmup": 2,
            "refit-every": 3,
            **CASES[case],
        }
    )


def run(
    config: RunConfig,
    *,
    rounds: int,
    strategy: TwoPhaseStrategy | None = None,
    arrays: ArrayRecord | None = None,
    first_round: int = 1,
) -> tuple[list[RoundRecord], ArrayRecord, TwoPhaseStrategy]:
    test = load_test_data(config.dataset, config.data_dir, seed=config.seed)
    model = build_model(config.model, test.x_test.shape[1:], test.num_classes, seed=config.seed)
    if arrays is None:
        arrays = ArrayRecord({name: Array(value) for name, value in get_weights(model).items()})
    strategy = strategy or build_strategy(config, wait=0.0)

    def central(server_round: int, current: ArrayRecord) -> MetricRecord:
        set_weights(model, {name: array.numpy() for name, array in current.items()})
        accuracy, loss = evaluate(model, test.x_test, test.y_test)
        return MetricRecord({"accuracy": accuracy, "loss": loss})

    records: list[RoundRecord] = []
    result = strategy.start(
        InlineGrid(app, CLIENTS, run_config=config.to_run_config()),
        arrays,
        num_rounds=rounds,
        train_config=ConfigRecord(
            {
                "local-steps": config.local_steps,
                "batch-size": config.batch_size,
                "learning-rate": config.learning_rate,
                "client-threads": 1,
                "num-classes": test.num_classes,
            }
        ),
        evaluate_config=ConfigRecord({"num-classes": test.num_classes}),
        evaluate_fn=central,
        evaluate_every=rounds,
        first_round=first_round,
        on_round=lambda record, current: records.append(record),
    )
    return records, result.arrays, strategy


@pytest.mark.parametrize("case", CASES)
def test_runs_end_to_end_and_resumes(case: str, tmp_path: Path) -> None:
    config = configured(case)
    records, final, _ = run(config, rounds=ROUNDS)

    assert [record.round for record in records] == list(range(1, ROUNDS + 1))
    for record in records:
        assert not record.failed
        assert record.replied == sorted(record.selected, key=int)
        if case != "ocs-probabilistic":  # its cohort is random and may be empty
            assert record.skipped is None
            assert len(set(record.selected)) == BUDGET
        calls = record.round in ROLL_CALLS.get(case, range(1, ROUNDS + 1))
        assert ("sketch" in record.bytes_up) == (calls and case not in NO_ROLL_CALL)
        if case in WITHOUT_SKETCHES:
            # Losses and norms are a few numbers: 32 sketch entries alone would be 128 bytes more.
            assert record.bytes_up.get("sketch", 0) < 150 * CLIENTS
    assert records[-1].metrics["central-accuracy"] > 0.3  # ten classes, two to a client

    # The same run, stopped after a few rounds; clients and server start anew.
    stop = 5
    before, arrays, strategy = run(config, rounds=stop)
    save_checkpoint(tmp_path, stop, arrays, strategy.state_dict())
    checkpoint = load_latest(tmp_path)
    assert checkpoint is not None
    resumed = build_strategy(config, wait=0.0)
    resumed.load_state_dict(checkpoint.state)
    after, end, _ = run(
        config, rounds=ROUNDS, strategy=resumed, arrays=checkpoint.model, first_round=stop + 1
    )
    assert [r.selected for r in before + after] == [r.selected for r in records]
    for name, array in final.items():
        np.testing.assert_array_equal(end[name].numpy(), array.numpy())


@pytest.mark.parametrize("case", ["power-of-choice", "cpow-d", "rpow-d", "afl", "oort"])
def test_losses_are_of_the_global_model_before_training(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(case)
    strategy = build_strategy(config, wait=0.0)
    heard: list[Feedback] = []
    monkeypatch.setattr(type(strategy), "observe", lambda self, feedback: heard.append(feedback))
    run(config, rounds=1, strategy=strategy)
    task = TaskConfig.from_run_config(config.to_run_config())
    test = load_test_data(config.dataset, config.data_dir, seed=config.seed)
    model = build_model(config.model, test.x_test.shape[1:], test.num_classes, seed=config.seed)
    feedback = heard[0]

    # Phase 1 where there is a roll call, else what came with the models.
    if feedback.candidates is not None:
        names, values = feedback.candidates.names, feedback.candidates.losses
    else:
        names, values = feedback.names, feedback.loss_rms if case == "oort" else feedback.losses
    assert len(names) >= BUDGET
    for name, value in zip(names, values, strict=True):
        data = client_data(
            task.dataset,
            task.data_dir,
            task.partitioner,
            int(name),
            CLIENTS,
            shards_per_client=task.shards_per_client,
            alpha=task.alpha,
            seed=task.seed,
        )
        each = per_example_losses(model, data)
        if case == "cpow-d":
            # A mini-batch of the same examples, before any step.
            assert each.min() < value < each.max()
            assert value != pytest.approx(each.mean(), rel=1e-6)
        elif case == "oort":
            assert value == pytest.approx(np.sqrt(np.mean(each**2)), rel=1e-5)
        else:
            assert value == pytest.approx(each.mean(), rel=1e-5)
