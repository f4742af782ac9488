"""What the baseline strategies collect, remember and learn, driven without messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from strategies import (
    AFL,
    GPFL,
    OCS,
    Candidates,
    DivFL,
    FedCor,
    FedCS,
    Feedback,
    Oort,
    Pool,
    PowerOfChoice,
    StaticDPP,
    TwoPhaseStrategy,
)
from strategies.memory import recall

NAN = float("nan")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def table(
    server_round: int,
    clients: int = 6,
    *,
    losses: Sequence[float] | None = None,
    norms: Sequence[float] | None = None,
    examples: Sequence[int] | None = None,
    seconds: Sequence[float] | None = None,
    ages: Sequence[int] | None = None,
    sketches: NDArray[np.float32] | None = None,
) -> Candidates:
    return Candidates(
        round=server_round,
        names=tuple(map(str, range(clients))),
        sketches=np.empty((clients, 0), np.float32) if sketches is None else sketches,
        layers=() if sketches is None else (sketches.shape[1],),
        losses=np.array([NAN] * clients if losses is None else losses, dtype=float),
        norms=np.array([NAN] * clients if norms is None else norms, dtype=float),
        examples=np.array([10] * clients if examples is None else examples),
        seconds=np.array([NAN] * clients if seconds is None else seconds, dtype=float),
        ages=np.array([server_round] * clients if ages is None else ages),
    )


def feedback(
    server_round: int,
    names: Sequence[str],
    *,
    losses: Sequence[float] | None = None,
    loss_rms: Sequence[float] | None = None,
    updates: Sequence[NDArray[np.float32]] | None = None,
    accuracy: float | None = None,
    loss: float | None = None,
) -> Feedback:
    rows = updates if updates is not None else [np.ones(4, np.float32)] * len(names)
    return Feedback(
        round=server_round,
        names=tuple(names),
        losses=np.array([NAN] * len(names) if losses is None else losses),
        loss_rms=np.array([NAN] * len(names) if loss_rms is None else loss_rms),
        examples=np.full(len(names), 25),
        seconds=np.ones(len(names)),
        updates=[{"w": update} for update in rows],
        global_update={"w": np.mean(rows, axis=0)},
        accuracy=accuracy,
        loss=loss,
        candidates=None,
    )


def picked(strategy: TwoPhaseStrategy, candidates: Candidates, budget: int = 2) -> list[str]:
    selection = strategy.select(candidates, budget, rng(candidates.round))
    return [candidates.names[row] for row in selection.rows]


def test_recall_tells_newcomers_from_clients_that_failed() -> None:
    values = recall({"1": 7.0}, table(5, 3, ages=[5, 2, 1]), unseen=np.inf, failed=0.0)
    np.testing.assert_array_equal(values, [np.inf, 7.0, 0.0])


# --- power-of-choice ---------------------------------------------------------------------------


def pool(examples: Sequence[int]) -> Pool:
    clients = len(examples)
    names = tuple(map(str, range(clients)))
    return Pool(names, np.array(examples), np.ones(clients, np.int64), np.full(clients, NAN))


def test_power_of_choice_asks_the_large_clients_more_often() -> None:
    strategy = PowerOfChoice(clients_per_round=1, candidate_fraction=0.5)
    asked = [strategy.roll_call(1, pool([1, 1, 1000, 1000]), rng(seed)) for seed in range(200)]
    assert all(len(set(names)) == 2 for names in asked)
    large = sum(set(names) == {"2", "3"} for names in asked)
    assert large > 180  # 99.8% each by the formula, 1 in 6 if candidates were drawn uniformly


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 10), (0.5, 5), (0.1, 3)])
def test_power_of_choice_asks_d_clients(fraction: float, count: int) -> None:
    strategy = PowerOfChoice(clients_per_round=3, candidate_fraction=fraction)
    assert len(strategy.roll_call(1, pool([5] * 10), rng())) == count


def test_power_of_choice_variants_collect_what_they_need() -> None:
    needs = {
        variant: (strategy.needs(1), strategy.train_needs)
        for variant in ("pow-d", "cpow-d", "rpow-d")
        for strategy in [PowerOfChoice(clients_per_round=1, variant=variant)]  # type: ignore[arg-type]
    }
    assert needs == {
        "pow-d": ({"loss"}, set()),
        "cpow-d": ({"batch-loss"}, set()),
        "rpow-d": (set(), {"loss"}),
    }
    with pytest.raises(ValueError, match="variant = 'powd': must be one of pow-d, cpow-d, rpow-d"):
        PowerOfChoice(clients_per_round=1, variant="powd")  # type: ignore[arg-type]


def test_power_of_choice_takes_the_plain_mean() -> None:
    assert not PowerOfChoice(clients_per_round=1, weighting="examples").by_examples


def test_rpow_d_goes_by_the_last_loss_and_tries_newcomers_first() -> None:
    strategy = PowerOfChoice(clients_per_round=2, variant="rpow-d")
    strategy.observe(feedback(1, ["0", "1", "2"], losses=[1.0, 3.0, 2.0]))
    strategy.observe(feedback(2, ["1"], losses=[0.5]))
    # Client 3 is new; 4 was picked in round 1 and never answered.
    candidates = table(3, 5, ages=[2, 1, 2, 3, 2])
    assert picked(strategy, candidates, 5) == ["3", "2", "0", "1", "4"]


# --- the others ----------------------------------------------------------------------------------


def test_ocs_picks_the_largest_norms() -> None:
    strategy = OCS(clients_per_round=2)
    assert strategy.needs(1) == {"norm"}
    assert picked(strategy, table(1, 4, norms=[1, 9, 3, 2])) == ["1", "2"]


@pytest.mark.parametrize(
    ("weighting", "share"), [("examples", [0.9, 0.1]), ("uniform", [0.5, 0.5])]
)
def test_probabilistic_ocs_weighs_as_told(weighting: str, share: list[float]) -> None:
    strategy = OCS(clients_per_round=2, probabilistic=True, weighting=weighting)  # type: ignore[arg-type]
    # Two clients, two places: both certain, so the coefficients are the weights.
    selection = strategy.select(table(1, 2, norms=[1, 2], examples=[90, 10]), 2, rng())
    assert selection.rows.tolist() == [0, 1]
    assert selection.coefficients is not None
    np.testing.assert_allclose(selection.coefficients, share)


def test_afl_refreshes_only_clients_that_trained() -> None:
    strategy = AFL(clients_per_round=2)
    assert not strategy.needs(1)
    strategy.observe(feedback(1, ["0", "1"], losses=[1.0, 2.0]))
    strategy.observe(feedback(2, ["1"], losses=[4.0]))
    assert strategy.state == {"valuations": {"0": 5.0, "1": 20.0}}  # sqrt(25) x loss


def test_divfl_without_overheads_compares_last_trainings() -> None:
    strategy = DivFL(clients_per_round=2, no_overheads=True)
    assert not strategy.needs(1)
    rows = [
        np.full(400, 5, np.float32),
        np.full(400, 5.1, np.float32),
        np.full(400, -9, np.float32),
    ]
    first = picked(strategy, table(1, 3), 3)
    assert sorted(first) == ["0", "1", "2"]
    strategy.observe(feedback(1, ["0", "1"], updates=rows[:2]))
    strategy.observe(feedback(2, ["2"], updates=rows[2:]))
    assert picked(strategy, table(3, 3, ages=[2, 2, 1])) in (["0", "2"], ["1", "2"])
    # Coordinates stay the same from round to round: equal updates, equal sketches.
    strategy.observe(feedback(4, ["0"], updates=rows[2:]))
    np.testing.assert_array_equal(strategy.state["sketches"]["0"], strategy.state["sketches"]["2"])
    # Client 3 is new and comes first; client 4 failed and comes last.
    assert picked(strategy, table(5, 5, ages=[1, 4, 3, 5, 2]), 5)[::4] == ["3", "4"]


def test_static_dpp_keeps_its_cohort() -> None:
    strategy = StaticDPP(clients_per_round=2)
    assert strategy.needs(1) == {"sketch"}
    sketches = np.array([[1, 0], [1, 0.01], [0, 1], [0.01, 1]], np.float32)
    first = picked(strategy, table(1, 4, sketches=sketches))
    assert sorted(int(name) // 2 for name in first) == [0, 1]  # one of each kind
    assert not strategy.needs(2)
    assert picked(strategy, table(2, 4)) == first
    away = table(3, 4)
    keep = [row for row in range(4) if away.names[row] != first[0]]
    fewer = replace(
        away,
        names=tuple(away.names[row] for row in keep),
        sketches=away.sketches[keep],
        **{
            key: getattr(away, key)[keep]
            for key in ("losses", "norms", "examples", "seconds", "ages")
        },
    )
    assert picked(strategy, fewer) == first[1:]


def test_fedcs_picks_the_fastest_within_the_round() -> None:
    strategy = FedCS(clients_per_round=3, round_seconds=3.5)
    assert picked(strategy, table(1, 4, seconds=[3, 1, 4, 9]), 3) == ["1", "0"]
    with pytest.raises(ValueError, match="round_seconds = 0: must be above 0"):
        FedCS(clients_per_round=1, round_seconds=0)


def test_gpfl_rewards_by_the_same_rounds_direction() -> None:
    strategy = GPFL(clients_per_round=2)
    assert strategy.needs_accuracy
    assert not strategy.needs(1)
    seen = [name for t in (1, 2, 3) for name in picked(strategy, table(t, 6))]
    assert sorted(seen) == list("012345")
    assert strategy.state["counts"] == dict.fromkeys("012345", 1)
    against = [np.array([3, 0, 0, 0], np.float32), np.array([-1, 0, 0, 0], np.float32)]
    strategy.observe(feedback(1, ["0", "1"], updates=against, accuracy=0.5, loss=1.0))
    first = np.exp([3, -1]) / np.exp([3, -1]).sum()
    np.testing.assert_allclose([strategy.state["rewards"][name] for name in "01"], first)
    # Accuracy the same and loss up: minus one half.
    strategy.observe(feedback(2, ["0", "1"], updates=against, accuracy=0.5, loss=1.1))
    np.testing.assert_allclose([strategy.state["rewards"][name] for name in "01"], first / 2)


def test_oort_remembers_rewards_and_paces() -> None:
    strategy = Oort(clients_per_round=2, pacer_window=2)
    assert not strategy.needs(1)
    for server_round, rms in enumerate([2.0, 2.0, 1.0, 1.0, 0.5, 0.5], start=1):
        strategy.observe(feedback(server_round, ["0", "1"], loss_rms=[rms, rms]))
    assert strategy.state["rewards"] == {"0": 12.5, "1": 12.5}  # 25 examples x 0.5
    assert strategy.state["percentile"] == 40.0  # relaxed after rounds 4 and 6
    assert len(strategy.state["utilities"]) == 2
    # In the first round nobody is known; in the next ones cohorts stay full.
    assert len(picked(Oort(clients_per_round=4), table(1), 4)) == 4
    assert len(set(picked(strategy, table(7, ages=[1, 1, 7, 7, 7, 3]), 6))) == 6


# --- FedCor --------------------------------------------------------------------------------------


def fedcor() -> FedCor:
    return FedCor(clients_per_round=2, warmup=3, refit_every=4, window=6)


def test_fedcor_asks_for_losses_only_when_it_learns() -> None:
    strategy = fedcor()
    asked = [t for t in range(1, 20) if strategy.needs(t)]
    assert asked == [1, 2, 3, 4, 7, 8, 11, 12, 15, 16, 19]
    every = FedCor(clients_per_round=2, warmup=1, refit_every=1)
    assert all(every.needs(t) for t in range(1, 9))


def drive(strategy: FedCor, losses: NDArray[np.float64], rounds: range, skip: int = 0) -> None:
    for t in rounds:
        known = losses[t] if strategy.needs(t) else None
        picked(strategy, table(t, losses.shape[1], losses=known))
        if t != skip:
            strategy.observe(feedback(t, ["0"]))


def test_fedcor_learns_from_changes_between_rounds_in_a_row() -> None:
    losses = rng(1).uniform(1, 2, size=(20, 6))
    strategy = fedcor()
    drive(strategy, losses, range(1, 9))
    changes = np.diff(losses, axis=0)
    # Rounds 2, 3 and 4, and round 8: rounds 5 to 7 have no round before them. Round 2 is then out
    # of the window of 6 rounds.
    np.testing.assert_array_equal(strategy.state["rounds"], [3, 4, 8])
    np.testing.assert_allclose(strategy.state["changes"], changes[[2, 3, 7]])
    assert strategy.state["embedding"].shape == (15, 6)


def test_fedcor_learns_nothing_from_a_skipped_round() -> None:
    losses = rng(1).uniform(1, 2, size=(9, 6))
    strategy = fedcor()
    drive(strategy, losses, range(1, 5), skip=2)
    np.testing.assert_array_equal(strategy.state["rounds"], [2, 4])


def test_fedcor_picks_from_both_groups_and_turns() -> None:
    # Clients 0-2 move together and so do 3-5: after warm-up, one of each, in turn.
    moves = rng(2).normal(size=(40, 2))
    losses = 50 + np.cumsum(np.repeat(moves, 3, axis=1), axis=0)
    strategy = fedcor()
    drive(strategy, losses, range(1, 4))
    seen = set()
    for t in range(4, 7):
        cohort = picked(strategy, table(t, losses=losses[t] if strategy.needs(t) else None))
        strategy.observe(feedback(t, ["0"]))
        assert sorted(int(name) // 3 for name in cohort) == [0, 1]
        seen.update(cohort)
    assert len(seen) == 6  # the discount lets no client repeat before its equals
    np.testing.assert_allclose(strategy.state["repeats"], 0.95)


def test_fedcor_takes_in_clients_that_join() -> None:
    losses = rng(3).uniform(1, 2, size=(12, 8))
    strategy = fedcor()
    drive(strategy, losses[:, :5], range(1, 6))
    cohort = picked(strategy, table(6, 8), 8)  # three more than were fitted
    assert len(set(cohort)) == 8
    strategy.observe(feedback(6, ["0"]))
    drive(strategy, losses, range(7, 9))
    assert strategy.state["changes"].shape == (3, 8)
    assert not strategy.state["changes"][0, 5:].any()
    assert strategy.state["embedding"].shape == (15, 8)


@pytest.mark.parametrize("option", ["warmup", "refit_every", "window"])
def test_fedcor_refuses_counts_of_0(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} = 0: must be at least 1"):
        FedCor(clients_per_round=1, **{option: 0})  # type: ignore[arg-type]
