"""A user's own function, named `module:function`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

__all__ = ["load_callable", "one_line"]


def load_callable(spec: str, what: str) -> Callable[..., Any]:
    """Import the function that `spec` names.

    Parameters
    ----------
    spec : str
        `module:function`; the module is looked for on Python's import path.
    what : str
        The option it was given for, for the error.

    Raises
    ------
    ValueError
        If the module cannot be imported or has no such function.
    """
    module_name, _, function_name = spec.partition(":")
    if not module_name or not function_name:
        raise ValueError(f"{what} {spec!r}: expected module:function")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ValueError(
            f"{what} {spec!r}: cannot import module {module_name!r}: {one_line(error)}"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ValueError(
            f"{what} {spec!r}: module {module_name!r} has no function {function_name!r}"
        )
    return function  # type: ignore[no-any-return]


def one_line(error: BaseException) -> str:
    """Return the type and the first line of an exception."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
