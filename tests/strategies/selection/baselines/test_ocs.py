import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.optimize import minimize

from strategies.selection.baselines import ocs_probabilities, sample_ocs, select_ocs


def by_definition(u: NDArray[np.float64], m: int) -> NDArray[np.float64]:
    """The formula of the paper, index by index, for u without zeros."""
    clients = len(u)
    order = np.argsort(u, kind="stable")
    for last in range(clients, 0, -1):
        lowest = order[:last]
        slots = m + last - clients
        if 0 < slots <= u[lowest].sum() / u[order[last - 1]] * (1 + 1e-12):
            p = np.ones(clients)
            p[lowest] = slots * u[lowest] / u[lowest].sum()
            return p
    raise AssertionError("the paper's condition holds for some l")


def test_worked_example() -> None:
    # l = 3: 0 < 2 + 3 - 4 = 1 <= 3 / 1, so p = 1 * 1/3 for the three; l = 4 fails: 2 > 103 / 100.
    np.testing.assert_allclose(
        ocs_probabilities(np.array([1.0, 1.0, 1.0, 100.0]), 2), [1 / 3, 1 / 3, 1 / 3, 1.0]
    )


@given(arrays(float, st.integers(1, 12), elements=st.floats(1e-3, 1e3)), st.data())
def test_matches_the_definition(u: NDArray[np.float64], data: st.DataObject) -> None:
    m = data.draw(st.integers(1, len(u)))
    p = ocs_probabilities(u, m)
    np.testing.assert_allclose(p, by_definition(u, m), rtol=1e-9)
    assert p.sum() == pytest.approx(m)
    assert ((p > 0) & (p <= 1)).all()


def test_has_the_least_variance() -> None:
    u = np.array([0.3, 1.0, 4.0, 2.5, 9.0])
    best = minimize(
        lambda p: np.sum(u**2 / p),
        np.full(5, 0.4),
        bounds=[(1e-6, 1)] * 5,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 2},
        method="SLSQP",
        options={"ftol": 1e-12},
    )
    np.testing.assert_allclose(ocs_probabilities(u, 2), best.x, atol=1e-4)


def test_scale_does_not_matter() -> None:
    u = np.array([1.0, 3.0, 2.0, 50.0])
    for factor in (1e-300, 1e300):
        np.testing.assert_allclose(ocs_probabilities(u * factor, 2), ocs_probabilities(u, 2))


def test_zero_updates() -> None:
    np.testing.assert_array_equal(ocs_probabilities(np.array([0, 2.0, 0, 1.0]), 2), [0, 1, 0, 1])
    np.testing.assert_array_equal(ocs_probabilities(np.zeros(4), 2), np.full(4, 0.5))
    np.testing.assert_allclose(ocs_probabilities(np.array([0, 1.0, 3.0]), 1), [0, 0.25, 0.75])


def test_weights_enter_the_probabilities_and_the_aggregate() -> None:
    # u = [1/2 * 2, 1/2 * 6] = [1, 3], one pick: p = [1/4, 3/4], coefficients w / p = [2, 2/3].
    seen = {}
    for seed in range(200):
        rows, coefficients = sample_ocs(
            np.array([2.0, 6.0]), np.array([10, 10]), 1, np.random.default_rng(seed)
        )
        seen[tuple(rows)] = coefficients
    assert set(seen) == {(), (0,), (1,), (0, 1)}  # |S| may be 0 and may exceed the budget
    np.testing.assert_allclose(seen[(0, 1)], [2, 2 / 3])


def test_top_norm_variant() -> None:
    norms = np.array([1.0, 5.0, 3.0, 5.0])
    assert select_ocs(norms, 3).tolist() == [1, 3, 2]


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"importance must be finite, row 1"):
        ocs_probabilities(np.array([1.0, np.inf]), 1)
    with pytest.raises(ValueError, match=r"weights must not all be zero"):
        sample_ocs(np.ones(2), np.zeros(2), 1, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"norms: row 0 is -1.0, must be a number of at least 0"):
        select_ocs(np.array([-1.0, 1.0]), 1)
    with pytest.raises(ValueError, match=r"weights: expected shape \(2,\)"):
        sample_ocs(np.ones(2), np.ones(3), 1, np.random.default_rng(0))
