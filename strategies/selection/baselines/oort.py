"""Oort: statistical utility times system speed, with exploration and a pacer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.selection._validation import as_budget, as_fraction
from strategies.selection.baselines._checks import as_vector
from strategies.selection.baselines.sampling import draw_without_replacement

__all__ = ["oort_exploration", "oort_pacer", "oort_rewards", "oort_scores", "select_oort"]


def oort_rewards(loss_rms: ArrayLike, examples: ArrayLike) -> NDArray[np.float64]:
    """Return |B_i| sqrt(mean of the squared per-example losses).

    "Oort: efficient federated learning via guided participant selection" (OSDI 2021), statistical
    utility, over all examples the client trained on, not one mini-batch.

    Parameters
    ----------
    loss_rms : array of shape (K,)
        Root of the mean squared per-example loss.
    examples : array of shape (K,)
        |B_i|.

    Returns
    -------
    array of shape (K,), float64

    Raises
    ------
    ValueError
        If shapes differ or a value is negative or NaN.
    """
    losses = as_vector(loss_rms, "loss_rms", least=0)
    return losses * as_vector(examples, "examples", size=losses.size, least=0)


def oort_exploration(
    round: int, *, initial: float = 0.9, decay: float = 0.98, floor: float = 0.3
) -> float:
    """Return epsilon, the share of the cohort spent on clients never seen, in `round` (from 1)."""
    return float(max(initial * decay ** (round - 1), floor))


def oort_pacer(
    percentile: float, utilities: Sequence[float], *, step: float = 5.0, window: int = 20
) -> float:
    """Return the percentile of durations that the next round prefers.

    Oort, Algorithm 1, pacer: every `window` rounds, if the utility gathered in
    the last window is below that of the window before, the preferred duration is relaxed by `step`.
    As in the authors' code the step is in percentiles of the measured durations, up to 100.

    Parameters
    ----------
    percentile : float
        The present one.
    utilities : sequence of float
        Sum of the cohort's rewards in every round so far.
    step : float
        Delta.
    window : int
        W, in rounds.
    """
    rounds = len(utilities)
    if rounds < 2 * window or rounds % window:
        return percentile
    now, before = sum(utilities[-window:]), sum(utilities[-2 * window : -window])
    return min(percentile + step, 100.0) if now < before else percentile


def oort_scores(
    rewards: ArrayLike,
    last_rounds: ArrayLike,
    seconds: ArrayLike,
    *,
    round: int,
    percentile: float = 30.0,
    clip: float = 0.9,
    alpha: float = 2.0,
) -> NDArray[np.float64]:
    """Return the utility of each client, NaN for those never seen.

    Oort, Eq. 1 and Algorithm 1: [(clipped reward - min) / range + sqrt(0.1 ln R / L_i)]
    times (T / t_i)^alpha if t_i > T. T is the given percentile of the measured durations, without a
    limit at 100. A client without a measured duration is not slowed.

    Departure: minimum and range are those of the clipped rewards, so that one outlier does not
    flatten the rest (the authors' code clips but divides by the unclipped range).

    Parameters
    ----------
    rewards : array of shape (K,)
        Of `oort_rewards`, at the last participation; NaN if never seen.
    last_rounds : array of shape (K,)
        L_i, the round of the last participation; read where the reward is known.
    seconds : array of shape (K,)
        t_i, NaN if never measured.
    round : int
        R, from 1.
    percentile : float
        Of `oort_pacer`, from 0 to 100.
    clip : float
        Quantile at which rewards are clipped.
    alpha : float
        Strength of the slowness penalty, at least 0.

    Returns
    -------
    array of shape (K,), float64
        At least 0 where not NaN.

    Raises
    ------
    ValueError
        If shapes differ or a value is out of range.
    """
    gains = as_vector(rewards, "rewards", least=0, unknown=True)
    durations = as_vector(seconds, "seconds", size=gains.size, least=0, unknown=True)
    as_fraction(clip, "clip")
    if round < 1 or not 0 <= percentile <= 100 or not alpha >= 0:
        raise ValueError(
            "round must be at least 1, percentile from 0 to 100 and alpha at least 0, "
            f"got {round!r}, {percentile!r}, {alpha!r}"
        )
    scores = np.full(gains.size, np.nan)
    seen = ~np.isnan(gains)
    if not seen.any():
        return scores
    lasts = as_vector(np.asarray(last_rounds)[seen], "last_rounds", least=1)
    clipped = np.minimum(gains[seen], np.quantile(gains[seen], clip, method="lower"))
    spread = np.ptp(clipped)
    utility = (clipped - clipped.min()) / (spread or 1.0) + np.sqrt(0.1 * np.log(round) / lasts)

    times = durations[seen]
    measured = durations[~np.isnan(durations)]
    if percentile < 100 and measured.size:
        preferred = np.percentile(measured, percentile, method="higher")
        slow = times > preferred
        utility[slow] *= (preferred / times[slow]) ** alpha
    scores[seen] = utility
    return scores


def select_oort(
    scores: ArrayLike,
    seconds: ArrayLike,
    budget: int,
    rng: np.random.Generator,
    *,
    exploration: float,
    cutoff: float = 0.05,
) -> NDArray[np.int64]:
    """Draw part of the cohort by utility and explore with the rest.

    Oort, Algorithm 1: of the clients whose score is at least `cutoff` times that of the
    floor((1 - epsilon) m)-th best, as many are drawn without replacement with probability
    proportional to the score; epsilon m clients never seen fill the cohort.

    Departures: unseen clients are taken fastest first (the paper draws them by speed), those
    without a measured duration last and in random order. Whatever one part cannot fill the other
    does, so m rows always come back; public ports return fewer or fail when few are scored.

    Parameters
    ----------
    scores : array of shape (K,)
        Of `oort_scores`, NaN if never seen.
    seconds : array of shape (K,)
        Duration of each client, NaN if never measured.
    budget : int
        m, from 1 to K.
    rng : numpy.random.Generator
    exploration : float
        epsilon, of `oort_exploration`.
    cutoff : float
        c, from 0 to 1.

    Returns
    -------
    array of shape (m,), int64
        Exploited clients in the order drawn, then explored ones.

    Raises
    ------
    TypeError, ValueError
        If `budget` is not an integer in range, shapes differ, or a value is out of range.
    """
    values = as_vector(scores, "scores", least=0, unknown=True)
    times = as_vector(seconds, "seconds", size=values.size, least=0, unknown=True)
    as_budget(budget, values.size)
    as_fraction(exploration, "exploration")
    as_fraction(cutoff, "cutoff")

    unseen = np.flatnonzero(np.isnan(values))
    seen = np.flatnonzero(~np.isnan(values))
    # A share such as 0.7 of 10 may come out just below a whole number.
    wanted = min(int((1 - exploration) * budget + 1e-9), seen.size)
    explored = min(budget - wanted, unseen.size)
    exploited = budget - explored

    best = seen[np.argsort(-values[seen], kind="stable")]
    eligible = best[:0]
    if exploited:
        level = cutoff * values[best[exploited - 1]]
        eligible = best[values[best] >= level]
    with np.errstate(divide="ignore"):
        drawn = eligible[draw_without_replacement(np.log(values[eligible]), exploited, rng)]
    # lexsort puts NaN last.
    fastest = unseen[np.lexsort((rng.random(unseen.size), times[unseen]))][:explored]
    return np.concatenate([drawn, fastest]).astype(np.int64)
