"""The comparison of groups of runs as a table."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.progress import byte_text
from simulation.outcomes import Group, Outcome, mean_and_error, measure

__all__ = ["Table", "as_text", "comparison_table", "mean_cell"]


@dataclass(frozen=True)
class Table:
    """Column headings, rows of text, and what a reader must know of them."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


def comparison_table(groups: Sequence[Group], target: float) -> Table:
    """Return one row a group: mean ± standard error over its seeds.

    Where not every seed reached the target, the number that did is given.
    """
    columns: tuple[tuple[str, Callable[[Outcome], float], Callable[[float], str]], ...] = (
        ("final accuracy", lambda o: o.final, _fraction),
        ("average accuracy", lambda o: o.average, _fraction),
        ("worst client", lambda o: o.worst, _fraction),
        (f"rounds to {target:.2f}", lambda o: o.rounds, _count),
        (f"bytes to {target:.2f}", lambda o: o.bytes, byte_text),
        ("TV distance", lambda o: o.variation, _fraction),
    )
    rows = []
    for group in groups:
        outcomes = [measure(run, target) for run in group.runs]
        cells = [mean_cell([get(o) for o in outcomes], text) for _, get, text in columns]
        rows.append((group.label, str(len(outcomes)), *cells))
    headings = ("strategy", "seeds", *(name for name, _, _ in columns))
    return Table(headings, tuple(rows), _NOTE)


def as_text(table: Table) -> str:
    """Return the table in aligned columns, with its note."""
    lines = [table.headings, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.headings))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([*text, "", *textwrap.wrap(table.note, 100)])


_NOTE = (
    "mean ± standard error over seeds. Accuracy is the mean over clients on their own test data, "
    "the last evaluation's and the average of all; the worst client's at the last. "
    "TV distance: between the clients' shares of all picks and equal shares."
)


def mean_cell(values: Sequence[float], text: Callable[[float], str]) -> str:
    """Return mean ± standard error of the values that are not NaN, each written by `text`.

    Where some are NaN, the number that are not is given.
    """
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "–"
    mean, error = mean_and_error(known)
    cell = text(mean) if math.isnan(error) else f"{text(mean)} ± {text(error)}"
    return cell if len(known) == len(values) else f"{cell} ({len(known)} of {len(values)})"


def _fraction(value: float) -> str:
    return f"{value:.3f}"


def _count(value: float) -> str:
    return f"{value:.0f}"
