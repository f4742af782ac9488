"""Read the folder a run has written."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.naming import natural_key

__all__ = ["Evaluations", "Participation", "Run", "load_config", "load_run", "read_rounds"]


@dataclass(frozen=True)
class Evaluations:
    """The rounds that were evaluated: three arrays of shape (E,).

    `rounds` is int64; `accuracy`, the mean over clients, and `worst`, the worst client's, are
    float64 in [0, 1].
    """

    rounds: NDArray[np.int64]
    accuracy: NDArray[np.float64]
    worst: NDArray[np.float64]


@dataclass(frozen=True)
class Participation:
    """Who was picked when.

    Attributes
    ----------
    names : tuple of N str
        All clients that were ever seen, in natural order.
    rounds : array of shape (R,), int64
        The rounds.
    picked, failed : arrays of shape (N, R), bool
        Whether the client was picked in the round, and whether it then did not deliver.
    """

    names: tuple[str, ...]
    rounds: NDArray[np.int64]
    picked: NDArray[np.bool_]
    failed: NDArray[np.bool_]


@dataclass(frozen=True)
class Run:
    """A run's folder as read: `config` as in `config.toml`, `rounds` as in `rounds.jsonl`."""

    folder: Path
    config: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]

    def evaluations(self) -> Evaluations:
        """Return the accuracies of the rounds that were evaluated."""
        evaluated = [line for line in self.rounds if "accuracy" in line.get("metrics", {})]
        accuracy = [line["metrics"]["accuracy"] for line in evaluated]
        worst = [line["metrics"].get("worst-accuracy", np.nan) for line in evaluated]
        return Evaluations(
            np.array([line["round"] for line in evaluated], dtype=np.int64),
            np.array(accuracy, dtype=np.float64),
            np.array(worst, dtype=np.float64),
        )

    def participation(self) -> Participation:
        """Return who was picked in which round."""
        seen: set[str] = set()
        for line in self.rounds:
            seen.update(line.get("eligible", ()), line.get("selected", ()))
        names = tuple(sorted(seen, key=natural_key))
        row = {name: i for i, name in enumerate(names)}
        picked = np.zeros((len(names), len(self.rounds)), dtype=np.bool_)
        failed = np.zeros_like(picked)
        for column, line in enumerate(self.rounds):
            selected = line.get("selected", ())
            picked[[row[name] for name in selected], column] = True
            lost = set(selected).difference(line.get("replied", ()))
            failed[[row[name] for name in lost], column] = True
        rounds = np.array([line["round"] for line in self.rounds], dtype=np.int64)
        return Participation(names, rounds, picked, failed)


def load_run(folder: Path) -> Run:
    """Read `config.toml` and `rounds.jsonl`.

    A last line cut short, as an interrupted run leaves it, is passed over.

    Raises
    ------
    ValueError
        If the folder does not hold a run; the message is one line.
    """
    return Run(folder, load_config(folder), tuple(read_rounds(folder)))


def load_config(folder: Path) -> dict[str, Any]:
    """Read `config.toml` of a folder that has a `rounds.jsonl` too.

    Raises
    ------
    ValueError
        If the folder does not hold a run; the message is one line.
    """
    with _told_in_one_line(folder):
        config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
        (folder / "rounds.jsonl").stat()
    return config


def read_rounds(folder: Path) -> Iterator[dict[str, Any]]:
    """Read `rounds.jsonl` line by line: a long run's file is too large to hold many of them.

    A last line cut short is passed over.

    Raises
    ------
    ValueError
        As `load_run`, when the line in question is reached.
    """
    with (
        _told_in_one_line(folder),
        (folder / "rounds.jsonl").open(encoding="utf-8", newline="\n") as file,
    ):
        for number, line in enumerate(file, start=1):
            try:
                record = json.loads(line)
                if not isinstance(record["round"], int):
                    raise TypeError
            except (ValueError, TypeError, KeyError):
                if not line.endswith("\n"):
                    return
                raise _NotARunError(
                    f"{folder / 'rounds.jsonl'}, line {number}: not the record of a round"
                ) from None
            yield record


class _NotARunError(ValueError):
    """A `ValueError` whose text is one line already."""


@contextmanager
def _told_in_one_line(folder: Path) -> Iterator[None]:
    try:
        yield
    except _NotARunError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        missing = Path(str(error.filename)).name
        raise ValueError(f"{folder} is not the folder of a run: it has no {missing}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{folder} cannot be read: {error}") from None
