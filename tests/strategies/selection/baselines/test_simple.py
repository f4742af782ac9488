"""Uniform, round-robin, power-of-choice and FedCS."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.selection.baselines import (
    draw_candidates,
    select_fedcs,
    select_power_of_choice,
    select_round_robin,
    select_uniform,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(st.integers(1, 40), st.data(), st.integers(0, 2**32))
def test_uniform_returns_distinct_rows(clients: int, data: st.DataObject, seed: int) -> None:
    budget = data.draw(st.integers(1, clients))
    rows = select_uniform(clients, budget, rng(seed))
    assert rows.shape == (budget,)
    assert rows.dtype == np.int64
    assert len(np.unique(rows)) == budget
    assert 0 <= rows.min() <= rows.max() < clients


@given(st.integers(1, 30), st.data())
def test_round_robin_gives_everyone_the_same_number_of_turns(
    clients: int, data: st.DataObject
) -> None:
    budget = data.draw(st.integers(1, clients))
    ages, turns = np.full(clients, 1), np.zeros(clients, dtype=np.int64)
    for _ in range(3 * clients):
        rows = select_round_robin(ages, budget)
        assert ages[rows].min() >= np.delete(ages, rows).max(initial=0)
        ages += 1
        ages[rows] = 1
        turns[rows] += 1
        assert np.ptp(turns) <= 1


def test_power_of_choice_picks_the_largest_losses() -> None:
    losses = rng(1).normal(size=20)
    assert np.array_equal(select_power_of_choice(losses, 5, rng()), np.argsort(-losses)[:5])


def test_power_of_choice_ties_do_not_share_an_index() -> None:
    # Looking clients up by their loss, a trap in public code, returns the first of equals twice.
    rows = select_power_of_choice(np.array([1.0, 3.0, 3.0, 3.0]), 3, rng())
    assert sorted(rows) == [1, 2, 3]


def test_rpow_d_asks_the_unseen_first() -> None:
    rows = select_power_of_choice(np.array([9.0, np.inf, 1.0, np.inf]), 3, rng())
    assert set(rows[:2]) == {1, 3}
    assert rows[2] == 0


def test_candidates_without_examples_come_last() -> None:
    for seed in range(50):
        assert 1 not in draw_candidates(np.array([5, 0, 7, 1]), 3, rng(seed))


def test_fedcs_is_the_greedy_rule() -> None:
    seconds = rng(2).uniform(1, 9, size=12)
    rows = select_fedcs(seconds, 5, rng())
    left, length, expected = set(range(12)), 0.0, []
    for _ in range(5):
        best = min(left, key=lambda row: (max(length, seconds[row]) - length, seconds[row]))
        expected.append(best)
        left.remove(best)
        length = max(length, seconds[best])
    assert rows.tolist() == expected


def test_fedcs_stops_at_the_deadline_but_returns_someone() -> None:
    seconds = np.array([4.0, 2.0, 8.0, 3.0])
    assert select_fedcs(seconds, 4, rng(), deadline=3.0).tolist() == [1, 3]
    assert select_fedcs(seconds, 4, rng(), deadline=1.0).tolist() == [1]


def test_fedcs_measures_the_unmeasured_first() -> None:
    assert select_fedcs(np.array([4.0, np.nan, 1.0]), 2, rng(), deadline=2.0).tolist() == [1, 2]


@pytest.mark.parametrize("budget", [0, -1, 5, True, 1.0, "2"])
def test_every_selector_refuses_a_bad_budget(budget: int) -> None:
    values = np.arange(1.0, 5.0)
    for call in (
        lambda: select_uniform(4, budget, rng()),
        lambda: select_round_robin(values, budget),
        lambda: select_power_of_choice(values, budget, rng()),
        lambda: select_fedcs(values, budget, rng()),
        lambda: draw_candidates(values, budget, rng()),
    ):
        with pytest.raises((TypeError, ValueError), match=r"^(budget|candidates): "):
            call()


def test_bad_values_name_the_row() -> None:
    with pytest.raises(ValueError, match=r"losses: row 1 is nan, must be a number"):
        select_power_of_choice(np.array([1.0, np.nan]), 1, rng())
    with pytest.raises(ValueError, match=r"seconds: row 0 is -1.0, must be a number of at least 0"):
        select_fedcs(np.array([-1.0, 2.0]), 1, rng())
    with pytest.raises(ValueError, match=r"ages: expected shape"):
        select_round_robin(np.zeros((2, 2)), 1)
    with pytest.raises(ValueError, match=r"deadline must be above 0"):
        select_fedcs(np.ones(3), 1, rng(), deadline=np.nan)
