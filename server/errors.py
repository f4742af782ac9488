"""The mistakes a user can make, and how they are told.

UserError
├── ConfigError       a run-config value (server.config)
├── RunFolderError    the results cannot be written (server.run_folder)
└── RunAborted        a run that cannot go on: data not found, too few clients
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["RunAborted", "UserError", "told_in_one_line"]


class UserError(RuntimeError):
    """Something the user can mend; its text is one line."""


class RunAborted(UserError):  # noqa: N818, reads as what happened
    """The run cannot start or go on."""


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """Keep Flower from printing a traceback for a `UserError`.

    Flower logs whatever a ServerApp raises with its traceback, in a simulation from two places and
    a thread. A mistyped key needs one line; every other error keeps its traceback.
    """
    try:
        yield
    except UserError as error:
        logging.getLogger("flwr").addFilter(_without_traceback)
        threading.excepthook = _quiet_thread
        print(f"error: {error}", flush=True)
        raise


def _without_traceback(record: logging.LogRecord) -> bool:
    if record.exc_info and isinstance(record.exc_info[1], UserError):
        record.exc_info = None
    return not record.getMessage().startswith("Traceback (most recent call last)")


def _quiet_thread(args: threading.ExceptHookArgs) -> None:
    if not isinstance(args.exc_value, UserError):
        threading.__excepthook__(args)
