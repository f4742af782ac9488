import numpy as np
import pytest

from strategies.selection.baselines import draw_without_replacement, largest


def test_takes_every_row_once_when_all_are_drawn() -> None:
    rows = draw_without_replacement(np.arange(9.0), 9, np.random.default_rng(0))
    assert sorted(rows) == list(range(9))


def test_weightless_rows_come_last() -> None:
    logs = np.array([-np.inf, 0.0, -np.inf, 1.0, -np.inf])
    orders = {
        tuple(draw_without_replacement(logs, 5, np.random.default_rng(seed))) for seed in range(200)
    }
    assert all(set(order[:2]) == {1, 3} for order in orders)
    assert len({order[2:] for order in orders}) == 6  # in every order


def test_huge_weights_do_not_overflow() -> None:
    rows = draw_without_replacement(np.array([0.0, 1e5, -1e5]), 3, np.random.default_rng(1))
    assert rows.tolist() == [1, 0, 2]


def test_largest_orders_and_breaks_ties_at_random() -> None:
    scores = np.array([1.0, np.inf, 2.0, np.inf, 1.0])
    seen = {tuple(largest(scores, 4, np.random.default_rng(seed))) for seed in range(100)}
    assert seen == {(a, 4 - a, 2, b) for a in (1, 3) for b in (0, 4)}


def test_same_generator_state_same_rows_and_global_state_untouched() -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first, second = (
        draw_without_replacement(np.zeros(50), 10, np.random.default_rng(7)) for _ in range(2)
    )
    assert np.array_equal(first, second)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("size", [-1, 4, True, 1.5])
def test_refuses_a_bad_size(size: int) -> None:
    with pytest.raises((TypeError, ValueError), match="size: "):
        draw_without_replacement(np.zeros(3), size, np.random.default_rng(0))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_refuses_a_bad_weight(bad: float) -> None:
    with pytest.raises(ValueError, match="log_weights"):
        draw_without_replacement(np.array([0.0, bad]), 1, np.random.default_rng(0))
