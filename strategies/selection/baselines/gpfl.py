"""GPFL: a bandit whose reward is how far a client's update went the way of the global one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.selection._validation import as_budget
from strategies.selection.baselines._checks import as_vector

__all__ = ["gpfl_projections", "gpfl_rewards", "gpfl_scores", "select_gpfl"]


def gpfl_projections(
    updates: Sequence[Mapping[str, NDArray[Any]]], global_update: Mapping[str, NDArray[Any]]
) -> NDArray[np.float64]:
    """Project each client's update on the global update of the same round, tensor by tensor.

    "GPFL: a gradient projection-based client selection framework for efficient federated learning"
    (arXiv 2403.17833), gradient projection: the mean over tensors of <g_i, g> / ||g||. A tensor
    that did not move counts zero.

    Departure: the global update is that of the same round, which the cohort itself made; the paper
    projects on the one before.

    Parameters
    ----------
    updates : sequence of K mappings
        Per client, tensor name to w_t - w_local.
    global_update : mapping
        Tensor name to w_t - w_{t+1} of the same round.

    Returns
    -------
    array of shape (K,), float64

    Raises
    ------
    ValueError
        If a client lacks a tensor or a shape differs.
    """
    if not global_update:
        raise ValueError("global_update must hold at least one tensor")
    projections = np.zeros(len(updates))
    for name, tensor in global_update.items():
        direction = np.asarray(tensor, dtype=np.float64).ravel()
        norm = float(np.linalg.norm(direction))
        for row, update in enumerate(updates):
            if name not in update or np.size(update[name]) != direction.size:
                raise ValueError(f"update {row} must hold {name} with {direction.size} entries")
            if norm > 0:
                projections[row] += np.asarray(update[name], np.float64).ravel() @ direction / norm
    return projections / len(global_update)


def gpfl_rewards(
    projections: ArrayLike, *, accuracy_change: float | None, loss_change: float | None
) -> NDArray[np.float64]:
    """Turn the projections of one cohort into rewards.

    GPFL, reward: softmax over the cohort, times 1 if test accuracy rose and -1 if it fell; on
    a tie times 0.5 if the test loss fell and -0.5 if not.

    Departure: the first round has no accuracy to compare with and counts as a rise.

    Parameters
    ----------
    projections : array of shape (K,)
        Of `gpfl_projections`.
    accuracy_change, loss_change : float or None
        This round's central evaluation minus the last one's; None if there is no last one.

    Returns
    -------
    array of shape (K,), float64

    Raises
    ------
    ValueError
        If a projection is NaN.
    """
    values = as_vector(projections, "projections")
    powers = np.exp(values - values.max())
    if accuracy_change is None or accuracy_change > 0:
        sign = 1.0
    elif accuracy_change < 0:
        sign = -1.0
    else:
        sign = 0.5 if loss_change is not None and loss_change < 0 else -0.5
    rewards: NDArray[np.float64] = sign * powers / powers.sum()
    return rewards


def gpfl_scores(rewards: ArrayLike, counts: ArrayLike, round: int) -> NDArray[np.float64]:
    """Return each client's upper confidence bound, infinite if it was never picked.

    GPFL, confidence bound: mu_i + a(t) sqrt(2 ln T / c_i), where a(t) = t / 100 below round 100 and
    200 / (t + 100) from there, and T = t - 1, the rounds done so far.

    Parameters
    ----------
    rewards : array of shape (K,)
        Sum of the rewards each client earned.
    counts : array of shape (K,)
        c_i, how often each was rewarded.
    round : int
        t, from 1.

    Returns
    -------
    array of shape (K,), float64

    Raises
    ------
    ValueError
        If shapes differ, a value is NaN, a count is negative, or `round` is below 1.
    """
    sums = as_vector(rewards, "rewards")
    picks = as_vector(counts, "counts", size=sums.size, least=0)
    if round < 1:
        raise ValueError(f"round must be at least 1, got {round!r}")
    weight = round / 100 if round < 100 else 200 / (round + 100)
    times = np.maximum(picks, 1)
    bounds = sums / times + weight * np.sqrt(2 * np.log(max(round - 1, 1)) / times)
    return np.where(picks > 0, bounds, np.inf)


def select_gpfl(
    rewards: ArrayLike, counts: ArrayLike, budget: int, *, round: int
) -> NDArray[np.int64]:
    """Pick the `budget` largest upper confidence bounds, ties by lower row.

    A client never picked has no bound and comes first, so the first ceil(N / m) rounds visit
    everyone once; the places that the last of them has left over go by the bound.

    Parameters
    ----------
    rewards, counts, round
        As in `gpfl_scores`.
    budget : int
        m, from 1 to K.

    Returns
    -------
    array of shape (m,), int64
        Best first.

    Raises
    ------
    TypeError, ValueError
        If `budget` is not an integer in range, or as `gpfl_scores`.
    """
    scores = gpfl_scores(rewards, counts, round)
    as_budget(budget, scores.size)
    return np.argsort(-scores, kind="stable")[:budget].astype(np.int64)
