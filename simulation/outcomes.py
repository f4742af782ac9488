"""What came of runs, in numbers: by run, and by group of runs that differ in their seed alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.results import Run

__all__ = [
    "Group",
    "Outcome",
    "common_target",
    "differing_keys",
    "group_runs",
    "mean_and_error",
    "measure",
    "traffic",
]

# Keys in which runs of one group may differ: the seed, and what does not change a result.
_PER_RUN = frozenset(
    {"seed", "out", "resume", "checkpoint-every", "deadline", "grace", "engine", "workers"}
)


@dataclass(frozen=True)
class Outcome:
    """One run in numbers; NaN where there is none.

    Attributes
    ----------
    final, average, worst : float
        Accuracy, mean over clients, at the last evaluation and averaged over evaluations; the worst
        client's at the last evaluation. In [0, 1].
    rounds, bytes : float
        Rounds, and bytes both ways, until the accuracy first reached the target.
    variation : float
        Total variation distance between the clients' shares of all picks and equal shares, in
        [0, 1]: 0 where all were picked equally often.
    """

    final: float
    average: float
    worst: float
    rounds: float
    bytes: float
    variation: float


@dataclass(frozen=True)
class Group:
    """Runs with one configuration and different seeds."""

    label: str
    runs: tuple[Run, ...]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs by configuration, in order of appearance.

    A label is the strategy, followed by the other keys in which groups differ.
    """
    shared: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        key = sorted((k, str(v)) for k, v in run.config.items() if k not in _PER_RUN)
        shared.setdefault(tuple(key), []).append(run)
    keys = [k for k in differing_keys([group[0] for group in shared.values()]) if k != "strategy"]
    groups = []
    for group in shared.values():
        config = group[0].config
        others = ", ".join(f"{key} {config.get(key, '–')}" for key in keys)
        label = str(config.get("strategy", group[0].folder.name))
        groups.append(Group(f"{label} ({others})" if others else label, tuple(group)))
    return groups


def differing_keys(runs: Sequence[Run]) -> list[str]:
    """Return the config keys, seeds and paths aside, whose values are not the same in all runs."""
    keys = dict.fromkeys(key for run in runs for key in run.config if key not in _PER_RUN)
    return [key for key in keys if len({str(run.config.get(key)) for run in runs}) > 1]


def traffic(run: Run) -> NDArray[np.float64]:
    """Return the bytes sent both ways from the start to the end of each round, shape (R,)."""
    sent = [
        sum(line.get("bytes-down", {}).values()) + sum(line.get("bytes-up", {}).values())
        for line in run.rounds
    ]
    return np.cumsum(sent, dtype=np.float64)


def measure(run: Run, target: float) -> Outcome:
    """Return a run's outcome; `target` is an accuracy in [0, 1]."""
    evaluations = run.evaluations()
    accuracy = evaluations.accuracy
    if not len(accuracy):
        nan = math.nan
        return Outcome(nan, nan, nan, nan, nan, _variation(run))
    reached = np.flatnonzero(accuracy >= target)
    rounds = sent = math.nan
    if len(reached):
        rounds = float(evaluations.rounds[reached[0]])
        numbers = [line["round"] for line in run.rounds]
        sent = float(traffic(run)[numbers.index(int(rounds))])
    return Outcome(
        final=float(accuracy[-1]),
        average=float(accuracy.mean()),
        worst=float(evaluations.worst[-1]),
        rounds=rounds,
        bytes=sent,
        variation=_variation(run),
    )


def common_target(runs: Sequence[Run]) -> float:
    """Return the highest accuracy, in whole hundredths, that every run reached; 0 without any."""
    best = [run.evaluations().accuracy.max(initial=0.0) for run in runs]
    # The tolerance is for accuracies such as 0.29, whose hundredfold is just below 29.
    return math.floor(min(best, default=0.0) * 100 + 1e-9) / 100


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard error of the values that are not NaN; NaN where undefined."""
    known = np.array([value for value in values if not math.isnan(value)])
    if not len(known):
        return math.nan, math.nan
    error = known.std(ddof=1) / math.sqrt(len(known)) if len(known) > 1 else math.nan
    return float(known.mean()), float(error)


def _variation(run: Run) -> float:
    picks = run.participation().picked.sum(axis=1)
    if not picks.sum():
        return math.nan
    return float(np.abs(picks / picks.sum() - 1 / len(picks)).sum() / 2)
