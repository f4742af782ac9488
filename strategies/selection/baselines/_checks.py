"""Checks the selectors of this package share; each raises one clear line."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.selection.types import FloatArray

__all__ = ["check_budget", "check_fraction", "check_sketches", "check_vector"]


def check_budget(budget: int, clients: int, *, name: str = "budget") -> None:
    """Raise unless `budget` is an integer from 1 to `clients`."""
    if isinstance(budget, bool) or not isinstance(budget, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {budget!r}")
    if not 1 <= budget <= clients:
        raise ValueError(f"{name} must be from 1 to the {clients} clients, got {budget}")


def check_fraction(name: str, value: float) -> None:
    """Raise unless `value` lies in [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be from 0 to 1, got {value!r}")


def check_vector(
    name: str,
    values: ArrayLike,
    *,
    size: int | None = None,
    minimum: float = -np.inf,
    unknown: bool = False,
) -> NDArray[np.float64]:
    """Return `values` as a float64 vector.

    `size` is the length it must have, `minimum` the least value allowed; NaN passes only if
    `unknown`, minus infinity never.
    """
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0 or (size is not None and vector.size != size):
        wanted = "(K,)" if size is None else f"({size},)"
        raise ValueError(f"{name} must have shape {wanted} with K > 0, got {vector.shape}")
    bad = np.isneginf(vector) | (vector < minimum)
    if not unknown:
        bad |= np.isnan(vector)
    if bad.any():
        row = int(np.argmax(bad))
        least = "a number" if np.isneginf(minimum) else f"a number of at least {minimum:g}"
        raise ValueError(f"{name} must be {least}, got {vector[row]} in row {row}")
    return vector


def check_sketches(sketches: FloatArray) -> NDArray[np.float64]:
    """Return `sketches` as a float64 matrix, every entry finite."""
    matrix = np.asarray(sketches, dtype=np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"sketches must have shape (K, p) with K, p > 0, got {matrix.shape}")
    finite = np.isfinite(matrix).all(axis=1)
    if not finite.all():
        raise ValueError(f"sketches must be finite, row {int(np.argmin(finite))} is not")
    return matrix
