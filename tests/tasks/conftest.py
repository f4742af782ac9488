from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks import client_data
from tasks._sources import labelled_arrays


@pytest.fixture
def forget() -> Callable[[], None]:
    """What a new process has forgotten: all that is kept in memory."""

    def clear() -> None:
        labelled_arrays.cache_clear()
        client_data._split.cache_clear()
        client_data._kept.clear()

    return clear


@pytest.fixture(autouse=True)
def cache(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    forget: Callable[[], None],
) -> Path:
    """Give every test an empty cache."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("MUSTER_CACHE_DIR", str(folder))
    forget()
    return folder


@pytest.fixture(scope="session")
def image_zips() -> Path:
    """The folder with `cifar10-images.zip` and `cifar100-images.zip`."""
    beside = Path(__file__).parents[2] / ".." / "shared" / "data"
    folder = Path(os.environ.get("MUSTER_DATA_DIR") or beside)
    if not (folder / "cifar10-images.zip").is_file():
        pytest.skip("no cifar10-images.zip: set MUSTER_DATA_DIR to the folder that holds it")
    return folder
