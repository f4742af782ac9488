"""SCKM-Select against Eqs. 8 and 9 written out, and by its properties."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies.selection import sckm as sckm_module
from strategies.selection import sckm_matrix, sckm_scores, select_sckm
from strategies.selection.sckm import group_scores, rank_by_age


@pytest.fixture(scope="module", params=["small pool", "large pool"], autouse=True)
def pool(request):
    """Every property holds for NumPy's way with small pools and the compiled way with large."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "large pool":
            patch.setattr(sckm_module, "_SMALL_ENTRIES", 0)
        yield request.param


def naive_matrix(sketches):
    """Eq. 8, entry by entry."""
    g = sketches.astype(np.float64)
    clients, entries = g.shape
    matrix = np.zeros((clients, clients))
    for i in range(clients):
        for j in range(clients):
            matrix[i, j] = sum(a * a * b + a * b * b for a, b in zip(g[i], g[j], strict=True))
    return matrix / entries


def naive_scores(sketches):
    """Eq. 9 from Eq. 8."""
    matrix = naive_matrix(sketches)
    np.fill_diagonal(matrix, 0)
    return matrix.sum(axis=1) / (len(matrix) - 1)


def problem(seed, clients=30, entries=20, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal((clients, entries)).astype(dtype)


finite = st.floats(-100, 100, width=32)
small_problems = st.tuples(st.integers(2, 8), st.integers(1, 6)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=finite)
)


@settings(deadline=None)
@given(small_problems)
def test_matrix_and_scores_are_the_papers_equations(sketches):
    scale = np.abs(sketches).max().astype(float) ** 3 + 1e-300
    np.testing.assert_allclose(
        sckm_matrix(sketches) / scale, naive_matrix(sketches) / scale, atol=1e-13
    )
    np.testing.assert_allclose(
        sckm_scores(sketches) / scale, naive_scores(sketches) / scale, atol=1e-13
    )


def test_two_clients_by_hand():
    # Eq. 8 of (1, 2) and (3, -1): (1*9 + 1*3 + 2*1 + 4*-1) / 2 = 5; each one's only other.
    np.testing.assert_allclose(sckm_scores([[1.0, 2.0], [3.0, -1.0]]), [5.0, 5.0])


def test_scores_of_many_blocks_equal_the_matrix():
    sketches = problem(1, clients=700, entries=500)
    matrix = sckm_matrix(sketches)
    np.fill_diagonal(matrix, 0)
    np.testing.assert_allclose(sckm_scores(sketches), matrix.sum(axis=1) / 699, rtol=1e-8)


def test_group_scores_are_the_scores_of_those_rows():
    sketches = problem(2, clients=400, entries=500)
    rows = np.random.default_rng(3).choice(400, 250, replace=False)
    np.testing.assert_allclose(group_scores(sketches, rows), sckm_scores(sketches[rows]))


@pytest.mark.parametrize("order", ["C", "F"])
def test_scores_of_a_large_pool_need_little_memory(order, pool):
    if pool == "small pool":
        pytest.skip("a small pool is copied to float64")
    sketches = np.asarray(problem(4, clients=20_000, entries=256), order=order)
    sckm_scores(sketches)  # compiles
    tracemalloc.start()
    sckm_scores(sketches)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The rows, the result and the column sums; the sketches themselves are 20 MB.
    assert peak < sketches.nbytes / 20


def test_a_large_pool_is_scored_as_a_small_one_and_left_alone():
    sketches = problem(3, clients=1_100, entries=1_000)
    sketches.setflags(write=False)
    rows = np.arange(0, 1_100, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sckm_module, "_SMALL_ENTRIES", sketches.size)
        small = sckm_scores(sketches), group_scores(sketches, rows)
        patch.setattr(sckm_module, "_SMALL_ENTRIES", sketches.size - 1)
        large = sckm_scores(sketches), group_scores(sketches, rows)
    np.testing.assert_allclose(large[0], small[0], rtol=1e-9)
    np.testing.assert_allclose(large[1], small[1], rtol=1e-9)


@pytest.mark.parametrize("seed", range(200))
def test_float32_and_float64_pick_the_same(seed):
    sketches = problem(seed, dtype=np.float64)
    low = select_sckm(sketches.astype(np.float32), 10)
    np.testing.assert_array_equal(low, select_sckm(sketches, 10))
    np.testing.assert_allclose(
        sckm_scores(sketches.astype(np.float32)), sckm_scores(sketches), rtol=1e-3, atol=1e-6
    )


def test_float32_scores_are_those_of_the_same_numbers_in_float64():
    sketches = problem(5, clients=500, entries=100)
    np.testing.assert_allclose(
        sckm_scores(sketches), sckm_scores(sketches.astype(np.float64)), rtol=1e-12
    )


@settings(deadline=None)
@given(small_problems, st.randoms(use_true_random=False))
def test_permuting_clients_permutes_the_answer(sketches, random):
    order = np.array(random.sample(range(len(sketches)), len(sketches)))
    scale = np.abs(sketches).max().astype(float) ** 3 + 1e-300
    np.testing.assert_allclose(
        sckm_scores(sketches[order]) / scale, sckm_scores(sketches)[order] / scale, atol=1e-13
    )


@settings(deadline=None)
@given(small_problems, st.data())
def test_picks_are_the_best_distinct_rows_and_inputs_stay(sketches, data):
    budget = data.draw(st.integers(1, len(sketches)))
    before = sketches.copy()
    rows = select_sckm(sketches, budget)
    scores = sckm_scores(sketches)
    np.testing.assert_array_equal(sketches, before)
    assert len(set(rows)) == budget
    np.testing.assert_array_equal(scores[rows], np.sort(scores)[::-1][:budget])


def test_ties_go_to_the_larger_age_then_the_lower_row():
    same = np.ones((5, 3), dtype=np.float32)
    np.testing.assert_array_equal(select_sckm(same, 3), [0, 1, 2])
    np.testing.assert_array_equal(select_sckm(same, 3, age=[1, 4, 2, 4, 0]), [1, 3, 2])
    np.testing.assert_array_equal(select_sckm(same, 5, age=[1, 4, 2, 4, 0]), [1, 3, 2, 0, 4])


def test_a_zero_update_scores_zero():
    sketches = problem(6)
    sketches[7] = 0
    assert sckm_scores(sketches)[7] == 0


def test_one_entry_per_sketch():
    sketches = problem(7, entries=1)
    np.testing.assert_allclose(sckm_scores(sketches), naive_scores(sketches), rtol=1e-9)


def test_one_client_scores_zero():
    np.testing.assert_array_equal(sckm_scores(problem(8, clients=1)), [0])
    np.testing.assert_array_equal(select_sckm(problem(8, clients=1), 1), [0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_client_a_million_times_larger(dtype):
    sketches = problem(9, dtype=dtype)
    sketches[4] *= 1e6
    np.testing.assert_allclose(sckm_scores(sketches), naive_scores(sketches), rtol=1e-6)


def test_float32_denormals_rank_as_their_multiples():
    sketches = problem(10)
    tiny = np.ldexp(np.round(sketches * 1000), -145).astype(np.float32)
    assert 0 < np.abs(tiny[tiny != 0]).min() < np.finfo(np.float32).tiny
    np.testing.assert_array_equal(
        select_sckm(tiny, 10), select_sckm(np.ldexp(tiny.astype(np.float64), 145), 10)
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("function", [sckm_scores, sckm_matrix, lambda s: select_sckm(s, 2)])
def test_a_bad_entry_is_named_by_its_row(value, function):
    sketches = problem(11, clients=300, entries=400)
    sketches[217, 3] = value
    sketches[218, 3] = value
    with pytest.raises(ValueError, match="row 217"):
        function(sketches)


@pytest.mark.parametrize("function", [sckm_scores, sckm_matrix])
def test_cubes_that_overflow_are_an_error(function):
    with pytest.raises(ValueError, match="too large"):
        function(np.full((3, 2), 1e150))


@pytest.mark.parametrize(
    ("sketches", "budget", "error", "message"),
    [
        (np.zeros(3), 1, ValueError, "shape"),
        (np.zeros((0, 3)), 1, ValueError, "shape"),
        (np.zeros((3, 0)), 1, ValueError, "shape"),
        (np.zeros((3, 2), dtype=complex), 1, TypeError, "float32"),
        (np.zeros((3, 2)), 0, ValueError, "budget: got 0"),
        (np.zeros((3, 2)), 4, ValueError, "at most the 3 clients"),
        (np.zeros((3, 2)), 1.0, TypeError, "budget"),
        (np.zeros((3, 2)), True, TypeError, "budget"),
    ],
)
def test_bad_input_is_named(sketches, budget, error, message):
    with pytest.raises(error, match=message):
        select_sckm(sketches, budget)


@pytest.mark.parametrize("age", [[1, 2], [1, 2, -1], [1, 2, np.nan]])
def test_bad_ages_are_named(age):
    with pytest.raises(ValueError, match="age"):
        select_sckm(np.zeros((3, 2)), 1, age=age)


def test_age_weight_zero_is_the_papers_rule():
    sketches = problem(12)
    ages = np.random.default_rng(12).integers(0, 50, len(sketches))
    np.testing.assert_array_equal(
        select_sckm(sketches, 8, age=ages, age_weight=0.0), select_sckm(sketches, 8)
    )


def test_age_weight_one_lets_a_full_turn_lift_the_last_to_the_first():
    sketches = problem(13, clients=20)
    scores = sckm_scores(sketches)
    last, budget = int(scores.argmin()), 4
    turn = len(sketches) / budget

    def first_pick(rounds):
        ages = np.zeros(len(sketches))
        ages[last] = rounds
        return select_sckm(sketches, budget, age=ages, age_weight=1.0)[0]

    assert first_pick(turn * 1.01) == last
    assert first_pick(turn * 0.99) == scores.argmax()


def test_ranks_of_equal_scores_are_shared():
    values = rank_by_age(np.array([5.0, 1.0, 5.0]), np.zeros(3), 1.0, age_weight=1.0)
    np.testing.assert_allclose(values, [0.75, 0.0, 0.75])


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_bad_age_weights_are_named(weight):
    with pytest.raises(ValueError, match="age_weight"):
        select_sckm(np.zeros((3, 2)), 1, age_weight=weight)
