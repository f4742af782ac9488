from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Hypothesis fails a test that takes longer than 200 ms once: a wall time, on shared machines.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# `from fakes import ...`: test files are imported by path, none is in a package.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def session_cache() -> Iterator[Path]:
    """Keep the data cache, also that of processes the tests start, out of the user's home."""
    before = os.environ.get("MUSTER_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="muster-cache-") as folder:
        os.environ["MUSTER_CACHE_DIR"] = folder
        yield Path(folder)
    if before is None:
        del os.environ["MUSTER_CACHE_DIR"]
    else:
        os.environ["MUSTER_CACHE_DIR"] = before
