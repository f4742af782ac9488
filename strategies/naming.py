"""Client names and their order."""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["natural_key"]

_NUMBER = re.compile(r"(\d+)")


@lru_cache(maxsize=1 << 17)  # the same names are sorted several times a round
def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that orders the numbers in a name as numbers: `"c2"` before `"c10"`."""
    return tuple(
        (0, int(part), part) if part.isdecimal() else (1, 0, part)
        for part in _NUMBER.split(name)
        if part
    )
