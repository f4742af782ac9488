"""Calling a function in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

__all__ = ["apart"]

_T = TypeVar("_T")


def apart(function: Callable[[], _T]) -> _T:
    """Call a function in a process that ends with the call, and return or raise as it does.

    What it imports and what it needs on the way take no memory here. The function and what it
    returns or raises are pickled.
    """
    # Not forked: a fork copies locks that other threads may hold.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as process:
        return process.submit(function).result()
