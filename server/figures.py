"""The pictures of a run: accuracy over rounds, and who was picked when.

Colours are Okabe and Ito's, told apart with any colour vision. Figures are made without pyplot,
so nothing global is touched and no window system is needed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from server.results import Participation, Run, load_run

__all__ = ["BLUE", "ORANGE", "accuracy_figure", "participation_figure", "save_figures"]

BLUE = "#0072B2"
ORANGE = "#D55E00"

_MAX_ROUNDS = 400  # more are drawn as shares, over _BINS bins of rounds
_BINS = 100
_MAX_LABELS = 100  # more clients than this are not all named


def save_figures(folder: Path) -> list[Path]:
    """Draw `accuracy.png` and `participation.png` into a run's folder; return their paths.

    A picture that would show nothing (no evaluation, no round) is left out.

    Raises
    ------
    ValueError
        If the folder does not hold a run.
    """
    run = load_run(folder)
    figures = {}
    if len(run.evaluations().rounds):
        figures["accuracy.png"] = accuracy_figure(run)
    if run.participation().names:
        figures["participation.png"] = participation_figure(run)
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=150)
    return [folder / name for name in figures]


def accuracy_figure(run: Run) -> Figure:
    """Return mean and worst client accuracy over rounds."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    evaluations = run.evaluations()
    few = len(evaluations.rounds) <= 60
    for values, label, colour, marker, dashes in (
        (evaluations.accuracy, "mean over clients", BLUE, "o", "-"),
        (evaluations.worst, "worst client", ORANGE, "s", "--"),
    ):
        axes.plot(
            evaluations.rounds,
            values,
            color=colour,
            linestyle=dashes,
            marker=marker if few else None,
            markersize=3.5,
            label=label,
        )
    axes.set(xlabel="round", ylabel="accuracy on the clients' test data", ylim=(0, 1.02))
    axes.set_title(_title(run), loc="left", fontsize=10)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _grid(axes)
    axes.spines[["top", "right"]].set_visible(False)
    # Outside the axes, where it hides no line.
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def participation_figure(run: Run) -> Figure:
    """Return clients × rounds: a mark where the client was picked.

    Beyond 400 rounds, the share of rounds in which it was picked; with more than 200 clients then
    the mean share of neighbouring ones.
    """
    participation = run.participation()
    count = len(participation.names)
    height = float(np.clip(1.4 + 0.16 * count, 2.6, 12.0))
    figure = Figure(figsize=(7.2, height), layout="constrained")
    axes = figure.subplots()
    if len(participation.rounds) > _MAX_ROUNDS:
        _draw_shares(figure, axes, participation)
    else:
        _draw_marks(axes, participation, cell=72 * (height - 1.4) / count)
    axes.set(xlabel="round", ylabel="client", ylim=(count - 0.5, -0.5))
    step = 1 if count <= _MAX_LABELS else _round_up(count / 40)
    rows = range(0, count, step)
    size = float(np.clip(72 * (height - 1.4) / len(rows) * 0.8, 4.5, 9))
    axes.set_yticks(rows, [_short(participation.names[row]) for row in rows], fontsize=size)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(_title(run), loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_marks(axes: Axes, participation: Participation, *, cell: float) -> None:
    """Draw one square a pick; `cell` is a row's height in points."""
    rounds = participation.rounds
    side = float(np.clip(0.8 * min(cell, 72 * 5.8 / len(rounds)), 1.8, 9))
    for where, label, colour in (
        (participation.picked & ~participation.failed, "picked", BLUE),
        (participation.failed, "picked, did not deliver", ORANGE),
    ):
        rows, columns = np.nonzero(where)
        if len(rows) or label == "picked":
            axes.scatter(
                rounds[columns],
                rows,
                s=side**2,
                marker="s",
                color=colour,
                linewidths=0,
                label=label,
            )
    axes.set_xlim(rounds[0] - 0.7, rounds[-1] + 0.7)
    axes.set_axisbelow(True)
    if len(participation.names) <= _MAX_LABELS:
        _grid(axes)
    # Above the axes, so that it hides no mark.
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=2,
        frameon=False,
        fontsize=8,
        markerscale=6 / side,
        borderaxespad=0.2,
        handletextpad=0.2,
    )


def _draw_shares(figure: Figure, axes: Axes, participation: Participation) -> None:
    shares = _binned(_binned(participation.picked, _BINS, axis=1), 2 * _BINS, axis=0)
    image = axes.imshow(
        shares,
        aspect="auto",
        interpolation="nearest",
        cmap="cividis",
        vmin=0,
        extent=(
            participation.rounds[0] - 0.5,
            participation.rounds[-1] + 0.5,
            len(participation.names) - 0.5,
            -0.5,
        ),
    )
    figure.colorbar(image, ax=axes, label="share of rounds in which the client was picked")


def _grid(axes: Axes) -> None:
    axes.grid(color="#DDDDDD", linewidth=0.6)


def _binned(values: NDArray[np.generic], bins: int, *, axis: int) -> NDArray[np.float64]:
    """Return means over at most `bins` nearly equal runs of neighbours along `axis`."""
    length = values.shape[axis]
    starts = np.unique(np.arange(bins) * length // bins)
    counts = np.diff(np.append(starts, length))
    sums = np.add.reduceat(values.astype(np.float64), starts, axis=axis)
    shares: NDArray[np.float64] = sums / np.expand_dims(counts, 1 - axis)
    return shares


def _round_up(value: float) -> int:
    """Return the least 1, 2 or 5 times a power of ten that is not below `value`."""
    power = 10 ** int(np.floor(np.log10(value)))
    return next(int(k * power) for k in (1, 2, 5, 10) if k * power >= value)


def _title(run: Run) -> str:
    parts = [run.config.get(key) for key in ("strategy", "dataset")]
    title = " on ".join(str(part) for part in parts if part)
    seed = run.config.get("seed")
    return title if seed is None else f"{title}, seed {seed}".lstrip(", ")


def _short(name: str) -> str:
    return name if len(name) <= 16 else f"{name[:15]}…"
