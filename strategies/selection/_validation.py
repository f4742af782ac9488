"""Checks and conversions shared by the public selection functions."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.selection._blocks import row_blocks
from strategies.selection.types import FloatArray

__all__ = [
    "as_age",
    "as_budget",
    "as_count",
    "as_fraction",
    "as_quality",
    "as_sketches",
    "as_weight",
    "reject_non_finite",
]


def as_sketches(sketches: ArrayLike) -> FloatArray:
    """Return `sketches` as a (K, p) float32 or float64 array, without a copy if it is one."""
    array: NDArray[Any] = np.asarray(sketches)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(
            f"sketches: expected shape (clients, entries), both at least 1, got {array.shape}"
        )
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind not in "fiu":
        raise TypeError(f"sketches: expected float32 or float64, got {array.dtype}")
    return array.astype(np.float64)


def reject_non_finite(sketches: FloatArray) -> None:
    """Raise `ValueError` naming the first row that holds a NaN or an infinity."""
    for rows in row_blocks(*sketches.shape):
        bad = ~np.isfinite(sketches[rows]).all(axis=1)
        if bad.any():
            row = rows.start + int(bad.argmax())
            raise ValueError(f"sketches: row {row} holds a NaN or an infinity, must be finite")


def as_budget(budget: int, clients: int, name: str = "budget") -> int:
    """Return `budget` as an int in 1..clients."""
    budget = as_count(budget, name)
    if budget > clients:
        raise ValueError(f"{name}: got {budget}, must be at most the {clients} clients")
    return budget


def as_count(value: int, name: str) -> int:
    """Return `value` as an int of at least 1."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name}: got {value}, must be at least 1")
    return int(value)


def as_fraction(value: float, name: str) -> float:
    """Return `value` as a float in [0, 1]."""
    number = _as_number(value, name)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{name}: got {value}, must be in [0, 1]")
    return number


def as_weight(value: float, name: str) -> float:
    """Return `value` as a finite float of at least 0."""
    number = _as_number(value, name)
    if not 0.0 <= number < np.inf:
        raise ValueError(f"{name}: got {value}, must be finite and at least 0")
    return number


def _as_number(value: float, name: str) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    return float(value)


def as_age(age: ArrayLike | None, clients: int) -> NDArray[np.float64]:
    """Return `age` as a (clients,) float64 array, zeros if there is none."""
    if age is None:
        return np.zeros(clients)
    return _as_nonnegative(age, clients, "age")


def as_quality(quality: ArrayLike, clients: int) -> NDArray[np.float64]:
    """Return `quality` as a (clients,) float64 array of finite numbers of at least 0."""
    return _as_nonnegative(quality, clients, "quality")


def _as_nonnegative(values: ArrayLike, clients: int, name: str) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (clients,):
        raise ValueError(f"{name}: expected shape ({clients},), got {array.shape}")
    bad = ~((array >= 0) & (array < np.inf))
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"{name}: row {row} is {array[row]}, must be finite and at least 0")
    return array
