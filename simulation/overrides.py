"""Run-config values from the command line, in the grammar of `flwr run --run-config`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from server.config import ConfigError, Scalar

__all__ = ["parse_overrides"]

_PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")


def parse_overrides(texts: Sequence[str]) -> dict[str, Scalar]:
    """Return the values of texts such as `strategy="adcs" theta=0.8`, or of one `.toml` file.

    Raises
    ------
    ConfigError
        If a text is not made of `key=value` pairs with TOML values, or the file cannot be read.
    """
    if len(texts) == 1 and texts[0].endswith(".toml"):
        return _read(Path(texts[0]).expanduser())
    values: dict[str, Scalar] = {}
    for text in texts:
        odd = _PAIR.sub("", text).split()
        if odd:
            raise ConfigError(f"{odd[0]}: expected key=value pairs, separated by spaces")
        for key, value in _PAIR.findall(text):
            try:
                values |= tomllib.loads(f"{key} = {value}")
            except tomllib.TOMLDecodeError:
                hint = f'text needs double quotes: {key}="{value}"'
                if value[0] in "\"'":
                    hint = "its quote is not closed"
                raise ConfigError(f"{key}={value}: not a value; {hint}") from None
    return values


def _read(file: Path) -> dict[str, Scalar]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None
