"""The two passes behind the SCKM scores of a large pool, compiled by Numba for this machine.

Imported only where it pays: compiling takes about a second, once a process.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from strategies.selection.types import FloatArray

__all__ = ["add_moments", "write_scores"]

# Without the order of a sum fixed it runs in vector registers; NaN and infinity still spread.
_compiled = njit(nogil=True, fastmath={"reassoc"})


@_compiled
def add_moments(
    sketches: FloatArray,
    rows: NDArray[np.int64],
    total: NDArray[np.float64],
    squares: NDArray[np.float64],
) -> None:
    """Add g and g² of each of `rows` to `total` and `squares`, shape (p,)."""
    for row in rows:
        for j in range(len(total)):
            g = np.float64(sketches[row, j])
            total[j] += g
            squares[j] += g * g


@_compiled
def write_scores(
    sketches: FloatArray,
    rows: NDArray[np.int64],
    total: NDArray[np.float64],
    squares: NDArray[np.float64],
    scores: NDArray[np.float64],
) -> None:
    """Write Σ g (s2 - g²) + g² (s1 - g) of each of `rows` to `scores`, shape (len(rows),)."""
    for i in range(len(rows)):
        score = 0.0
        for j in range(len(total)):
            g = np.float64(sketches[rows[i], j])
            score += g * ((squares[j] - g * g) + g * (total[j] - g))
        scores[i] = score
