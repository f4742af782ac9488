"""Randomness derived from names, never from a global generator.

Every draw in a run belongs to a (seed, round, client name, purpose). Deriving its generator from
just these makes a run repeatable whatever order, process or machine the draws happen in.
"""

from __future__ import annotations

import hashlib

import numpy as np

__all__ = ["derive_key", "derive_rng"]


def derive_key(seed: int, server_round: int, name: str, purpose: str) -> int:
    """Return the 128-bit key of one draw.

    The text hashed is unambiguous, so that no two (seed, round, name, purpose) share a key but by
    chance of 2^-128.
    """
    text = repr((int(seed), int(server_round), str(name), str(purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def derive_rng(seed: int, server_round: int, name: str, purpose: str) -> np.random.Generator:
    """Return a fresh generator (Philox) for one draw; global state is neither read nor changed."""
    return np.random.Generator(np.random.Philox(key=derive_key(seed, server_round, name, purpose)))
