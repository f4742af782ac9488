"""Objects between two processes: small parts pickled, the arrays in memory that both see.

The memory is a file without a name (`memfd_create`, Linux): nothing is left behind however a
process ends, and a container's small `/dev/shm` is no limit.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import pickle
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray

from strategies.arrays import held, held_values

__all__ = ["SharedMemory", "dump", "load"]

_ALIGNMENT = 64  # a cache line
_FIRST_SIZE = 1 << 20


class SharedMemory:
    """Memory that one process writes and others read; sent to a new process it stays the same.

    What is written stays until `clear`; the processes agree on when that may be.

    Raises
    ------
    OSError
        If there is no memory.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("muster")
            os.ftruncate(descriptor, _FIRST_SIZE)
        self._file = descriptor
        self._map: mmap.mmap | None = None
        self._used = 0
        # Where an array was written, and the array, so that its id is not used again.
        self._written: dict[int, tuple[int, NDArray[Any]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Hand the file to the process that is being started."""
        return _received, (DupFd(self._file),)

    def write(self, values: NDArray[Any]) -> int:
        """Copy an array into the memory, the same one only once; return the offset in bytes."""
        if id(values) not in self._written:
            start = -(-self._used // _ALIGNMENT) * _ALIGNMENT
            self._used = start + values.nbytes
            np.copyto(self._view(start, values.dtype, values.shape), values)
            self._written[id(values)] = start, values
        return self._written[id(values)][0]

    def read(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a copy of an array that was written."""
        return self._view(offset, dtype, shape).copy()

    def clear(self) -> None:
        """Write from the start again."""
        self._used = 0
        self._written.clear()

    def close(self) -> None:
        """Give the memory back once no other process has it."""
        self._map = None
        os.close(self._file)

    def _view(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        end = offset + dtype.itemsize * math.prod(shape)
        if self._map is None or end > len(self._map):
            size = os.fstat(self._file).st_size
            if size < end:  # only where it is written: a reader's cut would lose what is written
                size = 2 * end
                os.ftruncate(self._file, size)
            self._map = mmap.mmap(self._file, size)  # the one before goes with its last view
        return np.ndarray(shape, dtype, buffer=self._map, offset=offset)


def _received(descriptor: Any) -> SharedMemory:
    return SharedMemory(descriptor.detach())


def dump(value: object, memory: SharedMemory) -> bytes:
    """Pickle a value; arrays made by `strategies.arrays` are written to the memory."""
    buffer = io.BytesIO()
    _Pickler(buffer, memory).dump(value)
    return buffer.getvalue()


def load(data: bytes, memory: SharedMemory) -> Any:
    """Return what `dump` pickled; its arrays are copies, shared where they were one array."""
    return _Unpickler(io.BytesIO(data), memory).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, memory: SharedMemory) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._memory = memory

    def persistent_id(self, obj: object) -> tuple[int, str, tuple[int, ...]] | None:
        values = held_values(obj)
        if values is None:
            return None
        return self._memory.write(values), values.dtype.str, values.shape


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, memory: SharedMemory) -> None:
        super().__init__(file)
        self._memory = memory
        self._read: dict[tuple[int, str, tuple[int, ...]], Array] = {}

    def persistent_load(self, pid: Any) -> Array:
        if pid not in self._read:
            offset, dtype, shape = pid
            self._read[pid] = held(self._memory.read(offset, np.dtype(dtype), shape), copy=False)
        return self._read[pid]
