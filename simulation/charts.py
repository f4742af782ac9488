"""Figures that compare groups of runs: a line a group, its seeds as a band around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from server.results import Run
from simulation.outcomes import Group, traffic

__all__ = ["accuracy_chart", "clusters_chart", "lines_chart", "picks_chart", "traffic_chart"]

# Okabe and Ito's colours, told apart with any colour vision; their yellow is too pale for a line.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", ":")
_SIZE = (5.2, 3.9)  # inches: text stays readable when a phone shows the figure at 10 cm

Value = Literal["accuracy", "worst"]


@dataclass(frozen=True)
class _Curve:
    """Mean over seeds with the lowest and the highest; all of shape (E,), float64."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def accuracy_chart(groups: Sequence[Group], value: Value) -> Figure:
    """Return accuracy over rounds, of the mean over clients or of the worst client."""
    what = "accuracy, mean over clients" if value == "accuracy" else "accuracy of the worst client"
    lines = [(group.label, _accuracies(group, value)) for group in groups]
    return lines_chart(lines, ylabel=what, ylim=(0, 1.02))


def lines_chart(
    lines: Sequence[tuple[str, Sequence[Mapping[int, float]]]],
    *,
    ylabel: str,
    ylim: tuple[float, float] | None = None,
) -> Figure:
    """Return values over rounds, a line a label: mean over its seeds, a band over their range.

    Parameters
    ----------
    lines : sequence of (label, seeds)
        For each seed its values by round; a line has the rounds that all its seeds have.
    ylabel : str
        What the values are, with their unit.
    ylim : pair of float, optional
        Range of the values shown; by default as they come.
    """
    figure, axes = _figure()
    for number, (label, seeds) in enumerate(lines):
        _draw(axes, _summary(seeds), number, label)
    axes.set(xlabel="round", ylabel=ylabel, ylim=ylim)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _with_legend(figure, axes)


def traffic_chart(groups: Sequence[Group]) -> Figure:
    """Return accuracy over the megabytes sent so far, both ways, all clients together."""
    figure, axes = _figure()
    for number, group in enumerate(groups):
        sent = [_at_evaluations(run, traffic(run)) / 1e6 for run in group.runs]
        curve = _summary(_accuracies(group, "accuracy"))
        shortest = min([len(curve.mean), *map(len, sent)])
        x = np.mean([values[:shortest] for values in sent], axis=0)
        cut = _Curve(x, curve.mean[:shortest], curve.low[:shortest], curve.high[:shortest])
        _draw(axes, cut, number, group.label)
    axes.set(xlabel="sent, both ways (MB)", ylabel="accuracy, mean over clients", ylim=(0, 1.02))
    return _with_legend(figure, axes)


def clusters_chart(groups: Sequence[Group]) -> Figure | None:
    """Return the number of clusters over rounds; None if no run has any."""
    figure, axes = _figure()
    drawn = False
    for number, group in enumerate(groups):
        series = [
            {line["round"]: float(line["clusters"]) for line in run.rounds if "clusters" in line}
            for run in group.runs
        ]
        if all(series):
            _draw(axes, _summary(series), number, group.label)
            drawn = True
    if not drawn:
        return None
    axes.set(xlabel="round", ylabel="clusters found")
    axes.set_ylim(bottom=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    return _with_legend(figure, axes)


def picks_chart(groups: Sequence[Group]) -> Figure:
    """Return each client's share of all picks, clients by falling share, mean over seeds."""
    figure, axes = _figure()
    most = 0
    for number, group in enumerate(groups):
        shares = []
        for run in group.runs:
            picks = np.sort(run.participation().picked.sum(axis=1))[::-1]
            shares.append(100 * picks / max(int(picks.sum()), 1))
        count = min(map(len, shares))
        table = np.array([values[:count] for values in shares])
        x = np.arange(1.0, count + 1)
        curve = _Curve(x, table.mean(axis=0), table.min(axis=0), table.max(axis=0))
        _draw(axes, curve, number, group.label)
        most = max(most, count)
    if most:
        axes.axhline(100 / most, color="#888888", linewidth=0.8, label="equal shares")
    axes.set(xlabel="client, by falling share", ylabel="share of all picks (%)")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _with_legend(figure, axes)


def _accuracies(group: Group, value: Value) -> list[dict[int, float]]:
    """Return each run's accuracies by round."""
    series = []
    for run in group.runs:
        evaluations = run.evaluations()
        values = evaluations.accuracy if value == "accuracy" else evaluations.worst
        series.append(dict(zip(evaluations.rounds.tolist(), values.tolist(), strict=True)))
    return series


def _summary(series: Sequence[Mapping[int, float]]) -> _Curve:
    """Return mean and range over the seeds, at the rounds that all of them have."""
    rounds = sorted(set.intersection(*(set(values) for values in series)))
    table = np.array([[values[r] for r in rounds] for values in series], dtype=np.float64)
    x = np.array(rounds, dtype=np.float64)
    return _Curve(x, table.mean(axis=0), table.min(axis=0), table.max(axis=0))


def _at_evaluations(run: Run, values: NDArray[np.float64]) -> NDArray[np.float64]:
    rounds = np.array([line["round"] for line in run.rounds])
    return values[np.isin(rounds, run.evaluations().rounds)]


def _draw(axes: Axes, curve: _Curve, number: int, label: str) -> None:
    colour = _COLOURS[number % len(_COLOURS)]
    dashes = _DASHES[number // len(_COLOURS) % len(_DASHES)]
    marker = "o" if len(curve.x) == 1 else None
    axes.plot(curve.x, curve.mean, color=colour, linestyle=dashes, marker=marker, label=label)
    if np.any(curve.high > curve.low):
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _with_legend(figure: Figure, axes: Axes) -> Figure:
    """Put the legend below the axes, where it hides nothing however many groups there are."""
    handles, labels = axes.get_legend_handles_labels()
    columns = 1 if max(map(len, labels), default=0) > 28 else 2
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure
