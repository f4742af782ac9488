from __future__ import annotations

import os
from functools import partial

import pytest

from server.apart import apart
from server.config import RunConfig
from server.errors import RunAborted
from server.task import Task


def test_another_process_returns_the_value() -> None:
    assert apart(os.getpid) != os.getpid()
    assert apart(partial(divmod, 7, 3)) == (2, 1)


def test_what_is_raised_there_is_raised_here() -> None:
    with pytest.raises(ValueError, match="invalid literal for int"):
        apart(partial(int, "x"))
    with pytest.raises(RunAborted, match="nowhere"):
        apart(Task(RunConfig(dataset="npz", data_dir="nowhere")).start)
