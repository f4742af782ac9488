"""Updates as arrays, computed when read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from flwr.app import ArrayRecord

from strategies.arrays import view
from strategies.messages import Arrays

__all__ = ["Updates", "subtract"]


def subtract(start: ArrayRecord, end: ArrayRecord) -> Arrays:
    """Return start - end for every floating-point array: an update in the gradient's direction."""
    difference = {}
    for name, array in start.items():
        before = view(array)
        if np.issubdtype(before.dtype, np.floating):
            difference[name] = before - view(end[name])
    return difference


class Updates(Sequence[Arrays]):
    """The cohort's updates, one mapping per client; each is decoded when it is read."""

    def __init__(self, start: ArrayRecord, models: Sequence[ArrayRecord]) -> None:
        self._start = start
        self._models = models

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._models)

    @overload
    def __getitem__(self, row: int) -> Arrays: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[Arrays]: ...
    def __getitem__(self, row: int | slice) -> Arrays | Sequence[Arrays]:
        """Return a client's update, or some clients' updates."""
        if isinstance(row, slice):
            return Updates(self._start, self._models[row])
        return subtract(self._start, self._models[row])
