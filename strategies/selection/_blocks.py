"""Walking many rows in pieces that fit a cache, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["in_threads", "map_rows", "row_blocks"]

S = TypeVar("S")
T = TypeVar("T")

_MAX_WORKERS = 8
_MAX_PARTS = 64
_PART_ENTRIES = 2**20


def row_blocks(clients: int, entries: int, block_bytes: int = 2**19) -> list[slice]:
    """Cut rows into runs whose float64 copy takes about `block_bytes`, so as to fit a cache."""
    return _cut(clients, max(1, block_bytes // (8 * entries)))


def map_rows(function: Callable[[slice], T], clients: int, entries: int) -> list[T]:
    """Call `function` on each of at most 64 runs of rows, in threads; return its results in order.

    The runs depend on the shape alone, so that a sum over the results does too.
    """
    parts = _cut(clients, max(1, _PART_ENTRIES // entries, -(-clients // _MAX_PARTS)))
    return in_threads(function, parts)


def in_threads(function: Callable[[S], T], parts: Sequence[S]) -> list[T]:
    """Call `function` on each part, as many at a time as there are cores; results in order."""
    workers = min(len(parts), os.cpu_count() or 1, _MAX_WORKERS)
    if workers <= 1:
        return [function(part) for part in parts]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, parts))


def _cut(clients: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, clients)) for start in range(0, clients, step)]
