"""Cosine diversity: each pick points away from all picks before it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strategies.selection._validation import as_budget
from strategies.selection.baselines._checks import as_points
from strategies.selection.types import FloatArray

__all__ = ["select_cosine_diversity"]


def select_cosine_diversity(sketches: FloatArray, budget: int) -> NDArray[np.int64]:
    """Pick greedily the client least similar to those already picked.

    The "max-diversity" baseline of the SCKM paper, which leaves the rule open. Here: start from the
    largest norm, then add the row whose largest cosine similarity to the picked rows is smallest.
    Ties go to the lower row. The similarity to a zero sketch is zero.

    Parameters
    ----------
    sketches : array of shape (K, p), float32 or float64
    budget : int
        m, from 1 to K.

    Returns
    -------
    array of shape (m,), int64
        In the order picked.

    Raises
    ------
    TypeError, ValueError
        If `budget` is not an integer in range or a sketch is not finite.
    """
    points = as_points(sketches)
    as_budget(budget, len(points))
    peaks = np.abs(points).max(axis=1, keepdims=True)
    # By peak first: the square of a denormal entry is zero, that of 1e200 infinite.
    points = points / np.where(peaks > 0, peaks, 1)
    lengths = np.linalg.norm(points, axis=1)
    points /= np.where(lengths > 0, lengths, 1)[:, None]

    rows = [int(np.argmax(peaks[:, 0] * lengths))]
    largest = np.full(len(points), -np.inf)
    while len(rows) < budget:
        np.maximum(largest, points @ points[rows[-1]], out=largest)
        largest[rows[-1]] = np.inf
        rows.append(int(np.argmin(largest)))
    return np.array(rows, dtype=np.int64)
