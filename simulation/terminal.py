"""How the commands talk: results and progress in lines, a mistake in one, no traceback."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

__all__ = ["fail", "tell", "told_in_one_line"]


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """Turn what a user can mend, or caused, into one line and an exit code."""
    from server.errors import UserError

    signal.signal(signal.SIGTERM, _terminate)  # so that a SuperLink is ended here too
    try:
        yield
    except UserError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        tell("interrupted; what was finished is kept")
        raise typer.Exit(130) from None


def _terminate(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def fail(reason: str) -> NoReturn:
    """Print what is wrong and end with exit code 1."""
    typer.echo(f"error: {reason}", err=True)
    raise typer.Exit(1)


def tell(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)
