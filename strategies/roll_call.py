"""From the replies of phase 1 to a table of candidates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from strategies.messages import SketchReply
from strategies.naming import natural_key
from strategies.roster import Pool, Roster
from strategies.selection.types import Candidates

__all__ = ["everyone", "outliers", "tabulate"]


def outliers(rows: Mapping[str, SketchReply], max_norm_ratio: float) -> dict[str, str]:
    """Return the clients whose sketch is out of all proportion, with the reason.

    One sketch a million times too large would decide every third moment by itself. The median of
    the others' norms is the measure, so at least three clients are needed.
    """
    norms = {name: float(np.linalg.norm(row.sketch)) for name, row in rows.items()}
    median = float(np.median(list(norms.values()))) if len(norms) >= 3 else 0.0
    if median == 0:
        return {}
    return {
        name: f"sketch norm {norm:.3g} is {norm / median:.3g} times the median; "
        f"at most {max_norm_ratio!r} times is allowed"
        for name, norm in norms.items()
        if norm > max_norm_ratio * median
    }


def tabulate(
    rows: Mapping[str, SketchReply], sizes: Mapping[str, int], roster: Roster, server_round: int
) -> Candidates:
    """Return the candidates' table, rows sorted by client name.

    Parameters
    ----------
    rows : mapping of str to SketchReply
        The checked replies by client name.
    sizes : mapping of str to int
        Entries per sketched layer; empty if no sketch was asked for.
    roster : Roster
        Ages and reply times.
    server_round : int
        The round.
    """
    names = tuple(sorted(rows, key=natural_key))
    sketches = np.empty((len(names), sum(sizes.values())), dtype=np.float32)
    for row, name in enumerate(names):
        sketches[row] = rows[name].sketch
    return Candidates(
        round=server_round,
        names=names,
        sketches=sketches,
        layers=tuple(sizes.values()),
        losses=np.array([rows[name].loss for name in names], dtype=np.float64),
        norms=np.array([rows[name].norm for name in names], dtype=np.float64),
        examples=np.array([rows[name].examples for name in names], dtype=np.int64),
        seconds=roster.seconds(names),
        ages=roster.ages(names, server_round),
    )


def everyone(pool: Pool, server_round: int) -> Candidates:
    """Return all clients as candidates of whom only the bookkeeping is known."""
    unknown = np.full(len(pool.names), np.nan)
    return Candidates(
        round=server_round,
        names=pool.names,
        sketches=np.empty((len(pool.names), 0), dtype=np.float32),
        layers=(),
        losses=unknown,
        norms=unknown,
        examples=pool.examples,
        seconds=pool.seconds,
        ages=pool.ages,
    )
