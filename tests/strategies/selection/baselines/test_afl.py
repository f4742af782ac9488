import numpy as np
import pytest

from strategies.selection.baselines import afl_valuations, select_afl


def test_larger_clients_are_worth_more() -> None:
    # Dividing by sqrt(n), as some public code does, would reverse this.
    values = afl_valuations(np.array([2.0, 2.0]), np.array([100, 400]))
    np.testing.assert_array_equal(values, [20.0, 40.0])


def test_the_lowest_are_only_reached_by_the_uniform_part() -> None:
    values = np.arange(20.0)
    for seed in range(100):
        rows = select_afl(values, 10, np.random.default_rng(seed), alpha1=0.5, alpha3=0.2)
        assert len(set(rows)) == 10
        assert (rows[:8] >= 10).all()  # floor(0.8 * 10) drawn from the upper half
    reached = {
        int(row)
        for seed in range(100)
        for row in select_afl(values, 10, np.random.default_rng(seed), alpha1=0.5, alpha3=0.2)[8:]
    }
    assert min(reached) < 10


@pytest.mark.parametrize(("alpha3", "drawn"), [(0.1, 9), (0.3, 7), (0.9, 1), (1.0, 0), (0.0, 10)])
def test_floors_survive_rounding(alpha3: float, drawn: int) -> None:
    values = np.concatenate([np.full(10, 1e6), np.zeros(90)])
    rows = select_afl(values, 10, np.random.default_rng(1), alpha1=0.9, alpha3=alpha3)
    assert (rows[:drawn] < 10).all()
    assert len(set(rows)) == 10


def test_always_returns_the_budget() -> None:
    # Two clients are left by alpha1, ten are wanted.
    rows = select_afl(np.arange(10.0), 10, np.random.default_rng(0), alpha1=0.8)
    assert sorted(rows) == list(range(10))
    assert set(rows[:2]) == {8, 9}


def test_newcomers_count_as_the_best_known() -> None:
    values = np.array([1.0, 50.0, np.nan, 2.0, np.nan])
    for seed in range(50):
        rows = select_afl(values, 3, np.random.default_rng(seed), alpha1=0.4, alpha3=0.0)
        assert set(rows) == {1, 2, 4}
    assert len(select_afl(np.full(4, np.nan), 2, np.random.default_rng(0))) == 2


def test_large_valuations_do_not_overflow() -> None:
    rows = select_afl(
        np.array([0.0, 1e6, 2e6, 0.0]), 1, np.random.default_rng(0), alpha2=1.0, alpha3=0
    )
    assert rows.tolist() == [2]


def test_input_is_not_changed() -> None:
    values = np.array([1.0, np.nan, 3.0])
    select_afl(values, 2, np.random.default_rng(0))
    np.testing.assert_array_equal(values, [1.0, np.nan, 3.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha1": 1.5}, "alpha1: got 1.5, must be in"),
        ({"alpha2": -1.0}, "alpha2: got -1.0, must be finite and at least 0"),
        ({"alpha3": float("nan")}, "alpha3: got nan, must be in"),
    ],
)
def test_bad_options(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select_afl(np.ones(4), 2, np.random.default_rng(0), **options)


def test_infinite_valuation() -> None:
    with pytest.raises(ValueError, match="row 2 is not"):
        select_afl(np.array([1, np.nan, np.inf]), 1, np.random.default_rng(0))
