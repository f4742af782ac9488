import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from strategies.selection.baselines import (
    oort_exploration,
    oort_pacer,
    oort_rewards,
    oort_scores,
    select_oort,
)

NAN = np.nan


def test_reward_grows_with_the_data_and_uses_the_mean_square() -> None:
    losses = np.array([1.0, 3.0])  # two examples: the mean square is 5, not (mean)^2 = 4
    rms = np.sqrt(np.mean(losses**2))
    np.testing.assert_allclose(oort_rewards([rms, rms], [2, 4]), [2 * 5**0.5, 4 * 5**0.5])


def test_exploration_decays_to_the_floor() -> None:
    assert oort_exploration(1) == 0.9
    assert oort_exploration(3) == pytest.approx(0.9 * 0.98**2)
    assert oort_exploration(1000) == 0.3


def test_pacer_relaxes_only_when_utility_falls() -> None:
    falling = [2.0] * 20 + [1.0] * 20
    assert oort_pacer(30.0, falling[:39]) == 30.0  # not two whole windows yet
    assert oort_pacer(30.0, falling) == 35.0
    assert oort_pacer(30.0, [*falling, 0.0]) == 30.0  # only at the end of a window
    assert oort_pacer(98.0, falling) == 100.0
    assert oort_pacer(30.0, falling[::-1]) == 30.0
    assert oort_pacer(30.0, [1.0] * 40) == 30.0


def test_scores_by_hand() -> None:
    rewards = np.array([1.0, 3.0, NAN, 5.0])
    lasts = np.array([1, 2, 0, 4])
    seconds = np.array([1.0, 2.0, 3.0, 4.0])
    scores = oort_scores(rewards, lasts, seconds, round=5, percentile=50, clip=1.0)
    stale = np.sqrt(0.1 * np.log(5) / np.array([1, 2, 4]))
    # The 50th percentile of the durations, upwards, is 3 s: only client 3 is slower.
    expected = [0 + stale[0], 0.5 + stale[1], NAN, (1 + stale[2]) * (3 / 4) ** 2]
    np.testing.assert_allclose(scores, expected)


def test_an_outlier_is_clipped_and_does_not_flatten_the_rest() -> None:
    rewards = np.append(np.arange(1.0, 11.0), 1e9)
    scores = oort_scores(rewards, np.ones(11), np.full(11, NAN), round=1)
    np.testing.assert_allclose(scores, np.append(np.arange(10) / 9, 1.0))


def test_equal_rewards_and_no_durations() -> None:
    scores = oort_scores(np.full(3, 2.0), np.array([1, 2, 3]), np.full(3, NAN), round=10)
    np.testing.assert_allclose(scores, np.sqrt(0.1 * np.log(10) / np.array([1, 2, 3])))
    assert np.isnan(oort_scores(np.full(3, NAN), np.zeros(3), np.ones(3), round=1)).all()


def test_no_penalty_at_percentile_100() -> None:
    rewards, lasts = np.array([1.0, 2.0]), np.array([1, 1])
    slow = oort_scores(rewards, lasts, np.array([1.0, 50.0]), round=2, percentile=100)
    free = oort_scores(rewards, lasts, np.full(2, NAN), round=2)
    np.testing.assert_array_equal(slow, free)


@given(st.data(), st.integers(1, 25), st.integers(0, 2**32), st.floats(0, 1), st.floats(0, 1))
def test_always_returns_the_budget(
    data: st.DataObject, clients: int, seed: int, exploration: float, cutoff: float
) -> None:
    rng = np.random.default_rng(seed)
    budget = data.draw(st.integers(1, clients))
    seen = data.draw(st.lists(st.booleans(), min_size=clients, max_size=clients))
    scores = np.where(seen, rng.choice([0.0, 0.3, 1.0], size=clients), NAN)
    seconds = np.where(rng.random(clients) < 0.5, rng.random(clients), NAN)
    rows = select_oort(scores, seconds, budget, rng, exploration=exploration, cutoff=cutoff)
    assert rows.shape == (budget,)
    assert len(set(rows.tolist())) == budget


def explored(scores: NDArray[np.float64], seconds: NDArray[np.float64], share: float) -> list[int]:
    rows = select_oort(scores, seconds, 10, np.random.default_rng(0), exploration=share)
    return [int(row) for row in rows if np.isnan(scores[row])]


@pytest.mark.parametrize(("share", "count"), [(0.3, 3), (0.9, 9), (0.0, 0), (1.0, 10)])
def test_explores_the_share_asked_for_fastest_first(share: float, count: int) -> None:
    scores = np.append(np.linspace(0.1, 1, 20), np.full(20, NAN))
    seconds = np.arange(40.0)[::-1]
    assert explored(scores, seconds, share) == list(range(39, 39 - count, -1))


def test_cutoff_of_one_takes_the_best() -> None:
    scores = np.array([0.1, 0.9, 0.5, 0.7])
    for seed in range(20):
        rows = select_oort(
            scores, np.ones(4), 2, np.random.default_rng(seed), exploration=0.0, cutoff=1.0
        )
        assert set(rows) == {1, 3}


def test_bad_input() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="exploration: got 2, must be in"):
        select_oort(np.ones(2), np.ones(2), 1, rng, exploration=2)
    with pytest.raises(ValueError, match=r"seconds: expected shape \(2,\)"):
        select_oort(np.ones(2), np.ones(3), 1, rng, exploration=0.5)
    with pytest.raises(ValueError, match="percentile from 0 to 100"):
        oort_scores(np.ones(2), np.ones(2), np.ones(2), round=1, percentile=101)
    with pytest.raises(ValueError, match=r"rewards: row 0 is -1\.0"):
        oort_scores(np.array([-1.0]), np.ones(1), np.ones(1), round=1)
