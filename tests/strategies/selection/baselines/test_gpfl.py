import numpy as np
import pytest

from strategies.selection.baselines import (
    gpfl_projections,
    gpfl_rewards,
    gpfl_scores,
    select_gpfl,
)


def test_projection_is_the_mean_over_tensors() -> None:
    updates = [
        {"w": np.array([[3.0, 0.0], [0.0, 1.0]]), "b": np.array([2.0])},
        {"w": np.zeros((2, 2)), "b": np.array([-1.0])},
    ]
    direction = {"w": np.array([[4.0, 0.0], [0.0, 3.0]]), "b": np.array([-0.5])}
    # Client 0: (3*4 + 1*3) / 5 = 3 and 2 * -0.5 / 0.5 = -2; client 1: 0 and 1.
    np.testing.assert_allclose(gpfl_projections(updates, direction), [0.5, 0.5])


def test_a_tensor_that_did_not_move_counts_zero() -> None:
    assert gpfl_projections([{"w": np.ones(2)}], {"w": np.zeros(2)}).tolist() == [0.0]


def test_scaling_one_tensor_scales_only_its_term() -> None:
    rng = np.random.default_rng(0)
    updates = [{"a": rng.normal(size=4), "b": rng.normal(size=3)} for _ in range(3)]
    direction = {"a": rng.normal(size=4), "b": rng.normal(size=3)}
    base = gpfl_projections(updates, direction)
    # The global tensor enters by its direction only, unlike in one concatenated vector.
    np.testing.assert_allclose(
        gpfl_projections(updates, {"a": 100 * direction["a"], "b": direction["b"]}), base
    )


@pytest.mark.parametrize(
    ("accuracy", "loss", "total"),
    [
        (0.1, 9.0, 1),
        (-0.1, -9.0, -1),
        (0.0, -0.1, 0.5),
        (0.0, 0.1, -0.5),
        (0.0, 0.0, -0.5),
        (None, None, 1),
    ],
)
def test_sign_of_the_reward(accuracy: float | None, loss: float | None, total: float) -> None:
    rewards = gpfl_rewards(np.array([1.0, 2.0, 0.0]), accuracy_change=accuracy, loss_change=loss)
    assert rewards.sum() == pytest.approx(total)
    np.testing.assert_allclose(rewards / total, np.exp([1, 2, 0]) / np.exp([1, 2, 0]).sum())


def test_softmax_does_not_overflow() -> None:
    rewards = gpfl_rewards(np.array([1e4, -1e4]), accuracy_change=1.0, loss_change=None)
    np.testing.assert_array_equal(rewards, [1.0, 0.0])


def test_bound_by_hand() -> None:
    # Round 50: a = 0.5, T = 49. Client 0: 2 / 4 + 0.5 sqrt(2 ln 49 / 4).
    scores = gpfl_scores(np.array([2.0, -1.0, 0.0]), np.array([4, 1, 0]), 50)
    np.testing.assert_allclose(
        scores, [0.5 + 0.5 * np.sqrt(np.log(49) / 2), -1 + 0.5 * np.sqrt(2 * np.log(49)), np.inf]
    )
    # From round 100 on a = 200 / (t + 100): continuous there, falling after.
    late = gpfl_scores(np.array([0.0]), np.array([1]), 300)
    np.testing.assert_allclose(late, 0.5 * np.sqrt(2 * np.log(299)))


@pytest.mark.parametrize(("clients", "budget"), [(10, 3), (9, 3), (5, 5), (7, 1)])
def test_first_rounds_visit_everyone_once(clients: int, budget: int) -> None:
    rewards, counts = np.zeros(clients), np.zeros(clients)
    rng = np.random.default_rng(0)
    for round in range(1, -(-clients // budget) + 1):
        rows = select_gpfl(rewards, counts, budget, round=round)
        assert len(set(rows)) == budget
        unseen = int((counts == 0).sum())
        assert (counts[rows[: min(unseen, budget)]] == 0).all()
        counts[rows] += 1
        rewards[rows] += rng.normal(size=budget)
    assert (counts >= 1).all()


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="update 1 must hold w with 2 entries"):
        gpfl_projections([{"w": np.ones(2)}, {"v": np.ones(2)}], {"w": np.ones(2)})
    with pytest.raises(ValueError, match="at least one tensor"):
        gpfl_projections([], {})
    with pytest.raises(ValueError, match="round must be at least 1, got 0"):
        gpfl_scores(np.zeros(2), np.zeros(2), 0)
    with pytest.raises(ValueError, match=r"counts: row 1 is -1\.0, must be a number of at least 0"):
        select_gpfl(np.zeros(2), np.array([0, -1]), 1, round=1)
