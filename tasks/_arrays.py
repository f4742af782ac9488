"""Checks of labelled arrays that come from outside, and the layout they are brought into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["LabelledArrays", "checked", "scaled"]

_CHANNELS = (1, 3, 4)
_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True)
class LabelledArrays:
    """Training and test data as stored: images as uint8, everything else as float32.

    Attributes
    ----------
    x_train, x_test : arrays of shape (n, C, H, W) or (n, ...), uint8 or float32
    y_train, y_test : arrays of shape (n,), int64
    num_classes : int
    """

    x_train: NDArray[np.uint8] | NDArray[np.float32]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.uint8] | NDArray[np.float32]
    y_test: NDArray[np.int64]
    num_classes: int


def scaled(x: NDArray[np.uint8] | NDArray[np.float32]) -> NDArray[np.float32]:
    """Return uint8 images in [0, 1] as float32; float32 data as it is."""
    if x.dtype == np.uint8:
        return np.divide(x, np.float32(255), dtype=np.float32)
    return x.astype(np.float32, copy=False)


def checked(
    x_train: object, y_train: object, x_test: object, y_test: object, *, where: str
) -> LabelledArrays:
    """Check arrays in the Keras convention and bring images into channels-first layout.

    Parameters
    ----------
    x_train, x_test : array-likes of shape (n, ...)
        uint8 (images: (n, H, W), (n, H, W, C) or (n, C, H, W), C one of 1, 3, 4) or floating point
        (kept as it is, channels first where there are any).
    y_train, y_test : array-likes of shape (n,) or (n, 1), integers from 0
    where : str
        What the arrays come from, for errors.

    Raises
    ------
    ValueError
        On empty arrays, other dtypes, lengths or shapes that differ, values that are not finite,
        negative labels, or fewer than two classes.
    """
    xs: dict[str, NDArray[Any]] = {}
    ys: dict[str, NDArray[np.int64]] = {}
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        xs[part] = _features(np.asarray(x), f"{where}: x_{part}")
        ys[part] = _labels(np.asarray(y), f"{where}: y_{part}")
        if len(xs[part]) != len(ys[part]):
            raise ValueError(
                f"{where}: x_{part} has {len(xs[part])} rows and y_{part} has {len(ys[part])}, "
                "they must be equal"
            )
    if xs["train"].shape[1:] != xs["test"].shape[1:] or xs["train"].dtype != xs["test"].dtype:
        raise ValueError(
            f"{where}: one example of x_train is {_example(xs['train'])}, "
            f"of x_test {_example(xs['test'])}, they must be equal"
        )
    num_classes = 1 + int(max(ys["train"].max(), ys["test"].max()))
    if num_classes < 2:
        raise ValueError(f"{where}: every label is 0, at least two classes are needed")
    return LabelledArrays(
        _read_only(xs["train"]),
        _read_only(ys["train"]),
        _read_only(xs["test"]),
        _read_only(ys["test"]),
        num_classes,
    )


def _read_only(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    view = array.view()  # the caller's own array stays as it is
    view.setflags(write=False)
    return view


def _features(x: NDArray[Any], what: str) -> NDArray[np.uint8] | NDArray[np.float32]:
    if x.ndim < 2 or x.size == 0:
        raise ValueError(f"{what} has shape {x.shape}, expected (n, ...) with at least one value")
    if x.dtype == np.uint8:
        return np.ascontiguousarray(_channels_first(x, what))
    if not np.issubdtype(x.dtype, np.floating):
        raise ValueError(f"{what} has dtype {x.dtype}, expected uint8 images or floating point")
    with np.errstate(over="ignore"):  # what float32 cannot hold is reported below
        x = x.astype(np.float32, copy=False)
    if not np.isfinite(x).all():
        raise ValueError(f"{what} has values that are not finite in float32")
    return x


def _channels_first(x: NDArray[np.uint8], what: str) -> NDArray[np.uint8]:
    if x.ndim == 3:
        return x[:, np.newaxis]
    if x.ndim == 4 and x.shape[3] in _CHANNELS:
        return np.moveaxis(x, 3, 1)
    if x.ndim == 4 and x.shape[1] not in _CHANNELS:
        raise ValueError(
            f"{what} has shape {x.shape}, expected uint8 images as (n, H, W), (n, H, W, C) or "
            f"(n, C, H, W) with C one of {', '.join(map(str, _CHANNELS))}"
        )
    return x


def _labels(y: NDArray[Any], what: str) -> NDArray[np.int64]:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.size == 0:
        raise ValueError(f"{what} has shape {y.shape}, expected (n,) with n at least 1")
    if not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"{what} has dtype {y.dtype}, expected integers")
    if y.min() < 0:
        raise ValueError(f"{what} has the label {y.min()}, labels count from 0")
    return y.astype(np.int64, copy=False)


def _example(x: NDArray[Any]) -> str:
    return f"{x.dtype} {x.shape[1:]}"
