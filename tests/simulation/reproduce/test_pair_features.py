from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from simulation.reproduce.pair_features import (
    FEATURES,
    pair_features,
    pairs,
    probe_loss,
    ranks,
    relative_accuracy,
)


def naive(u: list[float], v: list[float]) -> dict[str, float]:
    """Table 2, entry by entry."""

    def norm(values: list[float], p: int) -> float:
        return float(sum(abs(x) ** p for x in values)) ** (1 / p)

    plus = [a + b for a, b in zip(u, v, strict=True)]
    minus = [a - b for a, b in zip(u, v, strict=True)]
    found = {}
    for p in (1, 2, 3, 4):
        product = (norm(plus, p) - norm(minus, p)) / 4
        found[f"cos{p}"] = product / (norm(u, p) * norm(v, p))
        found[f"m{p}"] = sum(a**p + b**p for a, b in zip(u, v, strict=True)) / len(u)
    found["d2"] = norm(minus, 2)
    found["d2²"] = sum(x * x for x in minus)
    found["SCKM"] = sum(a * a * b + a * b * b for a, b in zip(u, v, strict=True)) / len(u)
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_equal_the_naive_loop(dtype: type) -> None:
    updates = np.random.default_rng(0).standard_normal((5, 40)).astype(dtype)
    before = updates.copy()
    features = pair_features(updates)
    assert features.shape == (10, len(FEATURES))
    for row, (i, j) in zip(features, pairs(5), strict=True):
        expected = naive(updates[i].tolist(), updates[j].tolist())
        np.testing.assert_allclose(row, [expected[name] for name in FEATURES], rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(updates, before)


def test_tiny_updates_do_not_underflow() -> None:
    updates = np.random.default_rng(1).standard_normal((3, 20))
    scaled = pair_features(1e-120 * updates)
    cosines = slice(0, 4)  # homogeneous of degree -1
    np.testing.assert_allclose(
        1e-120 * scaled[:, cosines], pair_features(updates)[:, cosines], rtol=1e-9
    )


def test_a_zero_update_has_no_direction() -> None:
    features = pair_features(np.array([[0.0, 0.0], [1.0, -2.0]]))
    assert np.isfinite(features).all()
    assert (features[0, :4] == 0).all()


@pytest.mark.parametrize("updates", [np.zeros(3), np.zeros((1, 3)), np.full((2, 2), np.nan)])
def test_bad_updates(updates: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"updates must|not finite|NaN"):
        pair_features(updates)


def test_probe_loss_is_the_least_cross_entropy() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal(45)
    y = rng.uniform(size=45)

    def loss(w: np.ndarray) -> float:
        p = 1 / (1 + np.exp(-(w[0] + w[1] * x)))
        return float(-np.mean(y * np.log(p) + (1 - y) * np.log1p(-p)))

    best = minimize(loss, np.zeros(2)).fun
    assert probe_loss(x, y) == pytest.approx(best, abs=1e-6)
    assert probe_loss(1e-9 * x + 3e-9, y) == pytest.approx(best, abs=1e-6)
    assert best < probe_loss(np.ones(45), y)


def test_constants_predict_the_mean_label() -> None:
    y = np.array([0.2, 0.6])
    assert probe_loss(np.ones(2), y) == pytest.approx(
        -(0.4 * math.log(0.4) + 0.6 * math.log(0.6)), abs=1e-12
    )
    assert probe_loss(np.array([1.0, 2.0]), np.full(2, 0.5)) == pytest.approx(math.log(2))


def test_separable_labels_end_near_no_loss() -> None:
    assert probe_loss(np.array([-2.0, -1.0, 1.0, 2.0]), np.array([0.0, 0.0, 1.0, 1.0])) < 1e-3


@pytest.mark.parametrize(
    ("x", "y"),
    [([1.0], [0.5, 0.5]), ([], []), ([np.inf, 0.0], [0.0, 1.0]), ([0.0, 1.0], [0.0, 1.1])],
)
def test_bad_probes(x: list[float], y: list[float]) -> None:
    with pytest.raises(ValueError, match=r"one shape|must be finite"):
        probe_loss(x, y)


def test_ranks_and_relative_accuracy() -> None:
    losses = np.array([[0.5, 0.25, 1.0], [0.2, 0.2, 0.1]])
    np.testing.assert_array_equal(ranks(losses), [[2, 1, 3], [2.5, 2.5, 1]])
    np.testing.assert_allclose(relative_accuracy(losses), [[0.5, 0.75, 0], [0, 0, 0.5]])
    np.testing.assert_array_equal(relative_accuracy([0.0, 0.0]), [0, 0])
