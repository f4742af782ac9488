"""ADCS against plain greedy on the kernel, all subsets, and by its properties."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies.selection import adcs_scores, dpp_kernel, select_adcs


def plain_greedy(kernel, budget):
    """Eq. 9 by brute force: the determinant of every extension, in logarithms."""
    rows = []
    for _ in range(budget):
        rest = [n for n in range(len(kernel)) if n not in rows]
        gains = [np.linalg.slogdet(kernel[np.ix_([*rows, n], [*rows, n])])[1] for n in rest]
        rows.append(rest[int(np.argmax(gains))])
    return rows


def problem(seed, clients=30, entries=40, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((clients, entries)).astype(dtype), rng.uniform(0, 3, clients)


def test_kernel_is_the_papers_equations():
    sketches, quality = problem(0, clients=6, entries=5, dtype=np.float64)
    kernel = dpp_kernel(sketches, quality, 0.8)
    alpha = 0.8 / (2 * 0.2)
    for i, j in itertools.product(range(6), repeat=2):
        cosine = sketches[i] @ sketches[j] / np.linalg.norm(sketches[i])
        cosine /= np.linalg.norm(sketches[j])
        assert kernel[i, j] == pytest.approx(np.exp(alpha * (quality[i] + quality[j])) * cosine)


@pytest.mark.parametrize("theta", [0.2, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("seed", range(10))
def test_picks_are_those_of_plain_greedy(seed, theta):
    sketches, quality = problem(seed)
    expected = plain_greedy(dpp_kernel(sketches, quality, theta), 15)
    np.testing.assert_array_equal(select_adcs(sketches, quality, theta, 15), expected)


@pytest.mark.parametrize("theta", [0.0, 0.1, 0.8])
def test_lazy_picks_are_those_of_updating_every_row(theta):
    sketches, quality = problem(1, clients=3_000, entries=60)
    unit = sketches / np.linalg.norm(sketches.astype(np.float64), axis=1, keepdims=True)
    rest, rows = unit.copy(), []
    alpha = theta / (2 * (1 - theta))
    gain = 2 * alpha * quality
    for _ in range(40):
        # The first picks of theta = 0 tie, and go to the lower row.
        rows.append(int(np.argmax(np.round(gain, 9))))
        base = rest[rows[-1]] / np.linalg.norm(rest[rows[-1]])
        rest -= np.outer(rest @ base, base)
        gain = 2 * alpha * quality + np.log(np.maximum((rest**2).sum(axis=1), 1e-30))
        gain[rows] = -np.inf
    np.testing.assert_array_equal(select_adcs(sketches, quality, theta, 40), rows)


@pytest.mark.parametrize("clients", [4, 7, 10])
@pytest.mark.parametrize("theta", [0.0, 0.5, 0.8])
def test_no_subset_bounds_the_greedy_determinant_from_below(clients, theta):
    for seed in range(5):
        sketches, quality = problem(seed, clients=clients, entries=12, dtype=np.float64)
        kernel = dpp_kernel(sketches, quality, theta)

        def volume(rows, kernel=kernel):
            return np.linalg.slogdet(kernel[np.ix_(rows, rows)])[1]

        for budget in range(1, clients + 1):
            best = max(volume(rows) for rows in itertools.combinations(range(clients), budget))
            greedy = volume(select_adcs(sketches, quality, theta, budget))
            assert greedy <= best + 1e-9
            # Greedy log det is not far off either: a bound that a broken rule would miss.
            assert greedy >= best - 0.7 * budget


@pytest.mark.parametrize("seed", range(200))
def test_float32_and_float64_pick_the_same(seed):
    sketches, quality = problem(seed, dtype=np.float64)
    np.testing.assert_array_equal(
        select_adcs(sketches.astype(np.float32), quality, 0.8, 12),
        select_adcs(sketches, quality, 0.8, 12),
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("theta", [0.5, 0.8])
def test_permuting_clients_permutes_the_answer(seed, theta):
    sketches, quality = problem(seed, clients=200, entries=30)
    order = np.random.default_rng(seed + 99).permutation(200)
    rows = select_adcs(sketches[order], quality[order], theta, 25)
    np.testing.assert_array_equal(order[rows], select_adcs(sketches, quality, theta, 25))


@settings(deadline=None)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 5)).flatmap(
        lambda shape: st.tuples(
            arrays(np.float32, shape, elements=st.sampled_from([-2.0, -1.0, 0.0, 1.0, 1e-30, 1e6])),
            arrays(np.float64, shape[0], elements=st.sampled_from([0.0, 0.5, 1.0, 1e4])),
        )
    ),
    st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    st.data(),
)
def test_any_input_gives_exactly_the_budget_and_changes_nothing(inputs, theta, data):
    sketches, quality = inputs
    before = sketches.copy(), quality.copy()
    budget = data.draw(st.integers(1, len(sketches)))
    rows = select_adcs(sketches, quality, theta, budget)
    np.testing.assert_array_equal(sketches, before[0])
    np.testing.assert_array_equal(quality, before[1])
    assert rows.shape == (budget,)
    assert len(set(rows)) == budget
    # A smaller budget is a prefix: greedy never takes a pick back.
    np.testing.assert_array_equal(select_adcs(sketches, quality, theta, 1), rows[:1])
    picked, scores = adcs_scores(sketches, quality, theta, budget)
    np.testing.assert_array_equal(picked, rows)
    assert np.isfinite(scores).all()
    assert scores[rows].min() >= np.delete(scores, rows).max(initial=-np.inf)


@pytest.mark.parametrize("theta", [0.0, 0.5, 0.8])
def test_scores_rank_the_picks_in_order_then_the_next_pick(theta):
    sketches, quality = problem(3, clients=80)
    rows, scores = adcs_scores(sketches, quality, theta, 10)
    ranking = np.argsort(-scores, kind="stable")
    np.testing.assert_array_equal(ranking[1 if theta == 0 else 0 : 10], rows[theta == 0 :])
    assert ranking[10] == select_adcs(sketches, quality, theta, 11)[10]


def test_theta_one_is_the_top_by_quality_then_age_then_row():
    sketches, _ = problem(4, clients=5)
    quality = [1.0, 2.0, 1.0, 3.0, 1.0]
    np.testing.assert_array_equal(select_adcs(sketches, quality, 1.0, 4), [3, 1, 0, 2])
    np.testing.assert_array_equal(
        select_adcs(sketches, quality, 1.0, 4, age=[0, 0, 1, 0, 7]), [3, 1, 4, 2]
    )


def test_theta_zero_ignores_quality():
    sketches, quality = problem(5)
    np.testing.assert_array_equal(
        select_adcs(sketches, quality, 0.0, 10), select_adcs(sketches, quality[::-1], 0.0, 10)
    )


def test_identical_clients_count_once_and_then_by_quality_and_age():
    sketches, _ = problem(6, clients=4)
    sketches = np.repeat(sketches, 3, axis=0)
    quality = np.tile([1.0, 3.0, 2.0], 4)
    rows = select_adcs(sketches, quality, 0.5, 6, age=np.arange(12))
    assert set(rows[:4]) == {1, 4, 7, 10}
    np.testing.assert_array_equal(rows[4:], [11, 8])


def test_equal_scores_go_to_the_larger_age_then_the_lower_row():
    sketches = np.eye(6, dtype=np.float32)
    quality = np.ones(6)
    np.testing.assert_array_equal(select_adcs(sketches, quality, 0.5, 6), range(6))
    np.testing.assert_array_equal(
        select_adcs(sketches, quality, 0.5, 6, age=[0, 2, 1, 2, 0, 3]), [5, 1, 3, 2, 0, 4]
    )


def test_zero_updates_come_last_by_quality():
    sketches, quality = problem(7, clients=6)
    sketches[[1, 4]] = 0
    quality[1], quality[4] = 50.0, 60.0
    rows = select_adcs(sketches, quality, 0.8, 6)
    np.testing.assert_array_equal(rows[4:], [4, 1])
    np.testing.assert_array_equal(select_adcs(np.zeros((3, 2)), [1.0, 3.0, 2.0], 0.5, 3), [1, 2, 0])


def test_one_entry_per_sketch_is_one_pick_and_then_quality():
    sketches, quality = problem(8, entries=1)
    rows = select_adcs(sketches, quality, 0.8, 30)
    np.testing.assert_array_equal(rows, np.argsort(-quality))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("theta", [0.0, 0.5, 0.8])
def test_picks_beyond_the_rank_go_by_quality(dtype, theta):
    rng = np.random.default_rng(9)
    # Rank 32 up to float32 rounding: the noise must not pass for diversity.
    sketches = (rng.standard_normal((200, 32)) @ rng.standard_normal((32, 500))).astype(np.float32)
    quality = rng.uniform(0, 1, 200)
    rows = select_adcs(sketches.astype(dtype), quality, theta, 50)
    assert len(set(rows)) == 50
    assert np.linalg.matrix_rank(sketches[rows[:32]].astype(float), tol=1e-3) == 32
    rest = np.setdiff1d(np.arange(200), rows[:32])
    np.testing.assert_array_equal(rows[32:], rest[np.argsort(-quality[rest])][:18])


def test_a_client_a_million_times_larger_changes_nothing():
    sketches, quality = problem(10)
    large = sketches.copy()
    large[5] *= 2.0**20
    np.testing.assert_array_equal(
        select_adcs(large, quality, 0.5, 12), select_adcs(sketches, quality, 0.5, 12)
    )


@pytest.mark.parametrize(
    ("dtype", "exponent"), [(np.float32, -145), (np.float64, -1070), (np.float64, 1000)]
)
def test_extreme_sizes_pick_as_ordinary_ones(dtype, exponent):
    sketches, quality = problem(11)
    whole = np.round(sketches * 1000).astype(dtype)
    extreme = np.ldexp(whole, exponent)
    assert np.isfinite(extreme).all()
    np.testing.assert_array_equal(
        select_adcs(extreme, quality, 0.5, 12), select_adcs(whole, quality, 0.5, 12)
    )


def test_huge_quality_needs_no_exponential():
    sketches, _ = problem(12)
    quality = np.arange(30.0) * 1e4
    np.testing.assert_array_equal(select_adcs(sketches, quality, 0.99, 30), np.arange(30)[::-1])


def test_quality_of_zero_is_theta_zero():
    sketches, _ = problem(13)
    zero = np.zeros(30)
    np.testing.assert_array_equal(
        select_adcs(sketches, zero, 0.8, 12), select_adcs(sketches, zero, 0.0, 12)
    )


def test_budget_of_everybody():
    sketches, quality = problem(14)
    assert sorted(select_adcs(sketches, quality, 0.8, 30)) == list(range(30))


def test_memory_stays_far_below_the_kernel():
    sketches, quality = problem(15, clients=20_000, entries=64)
    tracemalloc.start()
    select_adcs(sketches, quality, 0.8, 30)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < sketches.nbytes  # the kernel would take 3.2 GB


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "function", [lambda s, q: select_adcs(s, q, 0.5, 2), lambda s, q: dpp_kernel(s, q, 0.5)]
)
def test_a_bad_entry_is_named_by_its_row(value, function):
    sketches, quality = problem(16, clients=300, entries=400)
    sketches[217, 3] = value
    with pytest.raises(ValueError, match="row 217"):
        function(sketches, quality)


@pytest.mark.parametrize("bad", [-0.1, np.nan, np.inf])
def test_bad_quality_is_named_by_its_row(bad):
    with pytest.raises(ValueError, match="quality: row 1"):
        select_adcs(np.eye(3), [1.0, bad, 1.0], 0.5, 1)


@pytest.mark.parametrize("theta", [-0.1, 1.1, np.nan])
def test_theta_outside_is_an_error(theta):
    with pytest.raises(ValueError, match="theta"):
        select_adcs(np.eye(3), np.ones(3), theta, 1)
    with pytest.raises(ValueError, match="theta"):
        dpp_kernel(np.eye(3), np.ones(3), theta)


@pytest.mark.parametrize("theta", [True, "0.5", None])
def test_theta_that_is_no_number_is_an_error(theta):
    with pytest.raises(TypeError, match="theta"):
        select_adcs(np.eye(3), np.ones(3), theta, 1)


def test_a_kernel_that_cannot_be_is_an_error():
    with pytest.raises(ValueError, match="theta: got 1"):
        dpp_kernel(np.eye(3), np.ones(3), 1.0)
    with pytest.raises(ValueError, match="overflows"):
        dpp_kernel(np.eye(3), [1.0, 1e4, 1.0], 0.8)


@pytest.mark.parametrize("budget", [0, 4])
def test_bad_budgets_are_named(budget):
    with pytest.raises(ValueError, match="budget"):
        select_adcs(np.eye(3), np.ones(3), 0.5, budget)
