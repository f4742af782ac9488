"""Arrays in messages that are serialised only when they leave the process.

Flower's `Array` holds the bytes of a `.npy` file: every read parses its header again, which in a
simulation within one process takes longer than training a small model. The arrays made here are
Flower `Array`s to everyone else. They keep the NumPy array and make the bytes when asked for them.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.common.constant import SType
from numpy.typing import NDArray

__all__ = ["array_bytes", "dtype_name", "held", "held_values", "lend", "pack", "view"]


class _HeldArray(Array):
    """An `Array` made of a NumPy array that nobody changes."""

    # Flower writes the class's name into what it sends, and looks it up when it receives.
    __qualname__ = "Array"

    def __init__(self, values: NDArray[Any]) -> None:
        self.__dict__.update(
            dtype=dtype_name(values.dtype), shape=values.shape, stype=SType.NUMPY, _values=values
        )

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """The bytes of the `.npy` file."""
        serialised: bytes | None = self.__dict__.get("_data")
        if serialised is None:
            buffer = io.BytesIO()
            np.save(buffer, self.__dict__["_values"], allow_pickle=False)
            serialised = self.__dict__["_data"] = buffer.getvalue()
            self._share(serialised)
        return serialised

    def _share(self, serialised: bytes) -> None:
        """Take the values from the file's bytes, so that a large model is not there twice."""
        values: NDArray[Any] = self.__dict__["_values"]
        if values.flags.c_contiguous:
            flat = np.frombuffer(serialised, values.dtype, offset=len(serialised) - values.nbytes)
            self.__dict__["_values"] = flat.reshape(values.shape)

    def numpy(self) -> NDArray[Any]:
        """Return a copy, which the caller may change, as `Array.numpy` does."""
        values: NDArray[Any] = self.__dict__["_values"]
        return values.copy()

    def __eq__(self, other: object) -> bool:
        """Compare as Flower's `Array` does: equal bytes."""
        if not isinstance(other, Array):
            return NotImplemented
        return (self.dtype, tuple(self.shape), self.stype, self.data) == (
            other.dtype,
            tuple(other.shape),
            other.stype,
            other.data,
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as Flower's `Array`, for processes that may not have this module."""
        return Array, (self.dtype, self.shape, self.stype, self.data)


class _LentArray(_HeldArray):
    """A held array for a reader that is known to change nothing."""

    __qualname__ = "Array"

    def numpy(self) -> NDArray[Any]:
        """Return the values themselves."""
        values: NDArray[Any] = self.__dict__["_values"]
        return values


def held(values: NDArray[Any], *, copy: bool = True) -> Array:
    """Return an `Array` of a copy of `values`, or of `values` itself, which becomes read-only."""
    if copy:
        values = values.copy()
    values.setflags(write=False)
    return _HeldArray(values)


def pack(arrays: Mapping[str, NDArray[Any]], *, copy: bool = True) -> ArrayRecord:
    """Return a record of copies of the arrays, or of the arrays themselves."""
    record = ArrayRecord()
    record.__dict__["_data"] = {name: held(values, copy=copy) for name, values in arrays.items()}
    return record


def view(array: Array) -> NDArray[Any]:
    """Return an array's values, read-only and without a copy.

    Raises
    ------
    ValueError
        If the array is not the file of a NumPy array, or of one of Python objects.
    """
    values: NDArray[Any] | None = array.__dict__.get("_values")
    if values is not None:
        return values
    if array.stype != SType.NUMPY:
        raise ValueError(f"an array is serialised as {array.stype!r}, expected {SType.NUMPY!r}")
    data = array.data
    size = 10 + int.from_bytes(data[8:10], "little")
    if data[6:7] != b"\x01":  # later versions have room for longer headers
        size = 12 + int.from_bytes(data[8:12], "little")
    shape, fortran, dtype = _read_header(data[:size])
    if dtype.hasobject:
        raise ValueError("an array holds Python objects")
    flat = np.frombuffer(data, dtype, math.prod(shape), offset=size)
    return flat.reshape(shape, order="F" if fortran else "C")


def lend(record: ArrayRecord) -> ArrayRecord:
    """Return a record of the same arrays whose `numpy()` makes no copy; they are read-only."""
    lent = ArrayRecord()
    arrays = {name: _LentArray(view(array)) for name, array in record.items()}
    lent.__dict__["_data"] = arrays
    return lent


def held_values(value: object) -> NDArray[Any] | None:
    """Return the values of an array made by `held`, not to be changed; None for all else."""
    return value.__dict__["_values"] if type(value) is _HeldArray else None


def array_bytes(array: Array) -> int:
    """Return `len(array.data)` without serialising."""
    values: NDArray[Any] | None = array.__dict__.get("_values")
    if values is None:
        return len(array.data)
    return _header_bytes(values.dtype.str, values.shape) + values.nbytes


@lru_cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return a dtype's name, which NumPy works out in Python each time."""
    return str(dtype)


@lru_cache(maxsize=1024)  # NumPy evaluates it as Python; a model's are the same in every round
def _read_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    file = io.BytesIO(header)
    if np.lib.format.read_magic(file) == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


@lru_cache(maxsize=1024)
def _header_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    buffer = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.tell()
