import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import check_grad, minimize

from strategies.selection.baselines import fit_fedcor, select_fedcor

Floats = NDArray[np.float64]
NOISE = 0.1


def likelihood(
    flat: Floats, changes: Floats, weights: Floats, dimension: int
) -> tuple[float, Floats]:
    """Minus the weighted log marginal likelihood, and its gradient, by the full matrix."""
    clients = changes.shape[1]
    x = flat.reshape(dimension, clients)
    covariance = x.T @ x + NOISE**2 * np.eye(clients)
    inverse = np.linalg.inv(covariance)
    solved = changes @ inverse
    _, determinant = np.linalg.slogdet(covariance)
    value = 0.5 * weights @ (np.sum(changes * solved, axis=1) + determinant)
    slope = weights.sum() * inverse - solved.T @ (weights[:, None] * solved)
    return float(value), (x @ slope).ravel()


def problem(seed: int, rounds: int = 30, clients: int = 8) -> tuple[Floats, Floats, Floats]:
    rng = np.random.default_rng(seed)
    changes = rng.normal(size=(rounds, 3)) @ rng.normal(size=(3, clients))
    changes += 0.2 * rng.normal(size=changes.shape)
    ages = np.arange(rounds)[::-1].astype(float)
    return changes, ages, 0.9**ages


def test_gradient_of_the_reference() -> None:
    changes, _, weights = problem(0)
    start = np.random.default_rng(1).normal(size=5 * 8)
    error = check_grad(
        lambda x: likelihood(x, changes, weights, 5)[0],
        lambda x: likelihood(x, changes, weights, 5)[1],
        start,
    )
    assert error < 1e-3 * np.linalg.norm(likelihood(start, changes, weights, 5)[1])


@pytest.mark.parametrize("seed", range(3))
def test_no_optimiser_finds_a_better_embedding(seed: int) -> None:
    changes, ages, weights = problem(seed)
    embedding = fit_fedcor(changes, ages, dimension=5, discount=0.9, noise=NOISE)
    value, gradient = likelihood(embedding.ravel(), changes, weights, 5)
    assert np.abs(gradient).max() < 1e-6 * weights.sum() / NOISE
    for start in range(2):
        found = minimize(
            likelihood,
            np.random.default_rng(start).normal(size=5 * 8),
            args=(changes, weights, 5),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 5000, "ftol": 1e-14, "gtol": 1e-9},
        )
        assert value <= found.fun + 1e-6 * abs(found.fun)
        x = found.x.reshape(5, 8)
        np.testing.assert_allclose(x.T @ x, embedding.T @ embedding, atol=1e-3)


def test_learns_the_covariance_it_was_drawn_from() -> None:
    rng = np.random.default_rng(3)
    true = rng.normal(size=(4, 10))
    changes = rng.normal(size=(20_000, 4)) @ true + 0.01 * rng.normal(size=(20_000, 10))
    embedding = fit_fedcor(changes, np.zeros(20_000))
    np.testing.assert_allclose(embedding.T @ embedding, true.T @ true, atol=0.25)
    assert embedding.shape == (15, 10)


def test_old_rounds_count_less() -> None:
    changes = np.array([[10.0, 0.0], [0.0, 1.0]])
    embedding = fit_fedcor(changes, np.array([200, 0]), discount=0.9)
    assert abs(embedding[0, 1]) > 10 * abs(embedding).sum(axis=0)[0]
    # Only differences of age matter, and none underflows to nothing.
    late = fit_fedcor(changes, np.array([100_200, 100_000]), discount=0.9)
    np.testing.assert_allclose(late, embedding)


def test_fewer_rounds_than_dimensions() -> None:
    embedding = fit_fedcor(np.array([[1.0, -1.0, 2.0]]), np.zeros(1))
    assert np.linalg.matrix_rank(embedding) == 1
    assert not fit_fedcor(np.zeros((4, 3)), np.zeros(4)).any()


def plain_greedy(
    embedding: Floats, weights: Floats, alphas: Floats, budget: int, noise: float
) -> list[int]:
    """The algorithm as published: the whole matrix, conditioned at each pick."""
    sigma = embedding.T @ embedding + noise**2 * np.eye(embedding.shape[1])
    left = list(range(len(sigma)))
    rows = []
    for _ in range(budget):
        gains = [
            alphas[k] / np.sqrt(sigma[k, k]) * sum(weights[i] * sigma[i, k] for i in left)
            for k in left
        ]
        best = left[int(np.argmax(gains))]
        rows.append(best)
        left.remove(best)
        sigma = sigma - np.outer(sigma[:, best], sigma[best]) / sigma[best, best]
    return rows


@pytest.mark.parametrize("seed", range(30))
def test_picks_what_the_published_greedy_picks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clients, budget = 25, 10
    embedding = rng.normal(size=(15, clients))
    weights = rng.uniform(1, 5, size=clients)
    alphas = 0.9 ** rng.integers(0, 4, size=clients)
    rows, scores = select_fedcor(embedding, weights, alphas, budget, noise=0.05)
    assert rows.tolist() == plain_greedy(embedding, weights, alphas, budget, 0.05)
    assert rows[0] == np.argmax(scores)


def test_correlated_clients_are_not_picked_together() -> None:
    # Two groups of equal clients: one pick from each before a second from either.
    embedding = np.zeros((15, 6))
    embedding[0, :3] = 1.0
    embedding[1, 3:] = 0.9
    rows, _ = select_fedcor(embedding, np.ones(6), np.ones(6), 2)
    assert rows.tolist() == [0, 3]


def test_the_discount_turns_picks_away() -> None:
    embedding = np.zeros((15, 4))
    embedding[0] = 1.0
    alphas = np.ones(4)
    picked = []
    for _ in range(4):
        rows, _ = select_fedcor(embedding, np.ones(4), alphas, 1)
        alphas[rows] *= 0.95
        picked.extend(rows.tolist())
    assert sorted(picked) == [0, 1, 2, 3]


@pytest.mark.parametrize("embedding", [np.zeros((15, 5)), np.ones((15, 5)), 1e6 * np.ones((15, 5))])
def test_out_of_rank_still_fills_the_cohort(embedding: Floats) -> None:
    rows, scores = select_fedcor(embedding, np.ones(5), np.ones(5), 5)
    assert sorted(rows) == list(range(5))
    assert np.isfinite(scores).all()


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="changes must be finite, row 1 is not"):
        fit_fedcor(np.array([[1.0], [np.nan]]), np.zeros(2))
    with pytest.raises(ValueError, match=r"ages: expected shape \(2,\)"):
        fit_fedcor(np.ones((2, 3)), np.zeros(3))
    with pytest.raises(ValueError, match="discount must be above 0"):
        fit_fedcor(np.ones((2, 3)), np.zeros(2), discount=0)
    with pytest.raises(ValueError, match="noise must be above 0, got 0"):
        select_fedcor(np.ones((2, 3)), np.ones(3), np.ones(3), 1, noise=0)
    with pytest.raises(ValueError, match=r"weights: expected shape \(3,\)"):
        select_fedcor(np.ones((2, 3)), np.ones(2), np.ones(3), 1)
