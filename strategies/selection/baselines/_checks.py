"""Checks that the selectors of this package share, beside those of `_validation`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.selection._validation import as_sketches, reject_non_finite

__all__ = ["as_points", "as_vector"]


def as_vector(
    values: ArrayLike,
    name: str,
    *,
    size: int | None = None,
    least: float = -np.inf,
    unknown: bool = False,
) -> NDArray[np.float64]:
    """Return `values` as a float64 vector of at least one entry.

    `size` is the length it must have, `least` the smallest value allowed; NaN passes only if
    `unknown`, minus infinity never.
    """
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0 or (size is not None and vector.size != size):
        wanted = "(clients,), at least one" if size is None else f"({size},)"
        raise ValueError(f"{name}: expected shape {wanted}, got {vector.shape}")
    bad = np.isneginf(vector) | (vector < least)
    if not unknown:
        bad |= np.isnan(vector)
    if bad.any():
        row = int(bad.argmax())
        must = "a number" if np.isneginf(least) else f"a number of at least {least:g}"
        raise ValueError(f"{name}: row {row} is {vector[row]}, must be {must}")
    return vector


def as_points(sketches: ArrayLike) -> NDArray[np.float64]:
    """Return `sketches` as a float64 matrix of finite entries."""
    matrix = as_sketches(sketches)
    reject_non_finite(matrix)
    return matrix.astype(np.float64, copy=False)
