"""Write a run's folder: configuration, one line a round, checkpoints, the model."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import tomli_w
from flwr.app import ArrayRecord

from server.checkpoint import Checkpoint, load_latest, save_checkpoint, save_model
from server.config import ConfigError, RunConfig
from server.errors import UserError
from server.results import load_run
from strategies import RoundRecord

__all__ = ["RunFolder", "RunFolderError", "new_folder"]

# What may differ between a run and the run that goes on with it.
_MAY_CHANGE = (
    *("resume", "num-server-rounds", "checkpoint-every", "deadline", "grace", "out"),
    "workers",
)


class RunFolderError(UserError):
    """The results cannot be written; the text says what is safe."""


def new_folder(config: RunConfig) -> Path:
    """Make a folder for a run that names none: under `runs/` in the working directory.

    Raises
    ------
    RunFolderError
        If it cannot be made.
    """
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{config.strategy}"
    # Another run of the same second may have taken the name.
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    folder = next(path for name in names if not (path := Path("runs", name).absolute()).exists())
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise RunFolderError(f"cannot make {folder}: {error.strerror or error}") from error
    return folder


class RunFolder:
    """The folder of one run, open for writing; a context manager.

    Parameters
    ----------
    config : RunConfig
        Names the folder (`out`); without a name it is a new one under `runs/` in the working
        directory.
    extra : mapping, optional
        Facts about how the run is run, written to `config.toml` beside its values.

    Raises
    ------
    ConfigError
        If `out` holds a run already and `resume` is not `auto`, or holds a run with another
        configuration.
    RunFolderError
        If the folder cannot be written.
    """

    def __init__(self, config: RunConfig, extra: Mapping[str, Any] | None = None) -> None:
        self.path = Path(config.out).absolute() if config.out else new_folder(config)
        self._every = config.checkpoint_every
        self._written = 0
        values = {**config.to_run_config(), "out": str(self.path), **(extra or {})}
        rounds = self.path / "rounds.jsonl"
        # A run that ended before its first round, by too few clients say, is none to lose.
        holds_run = rounds.exists() and rounds.stat().st_size > 0
        self.checkpoint = self._resume(values) if holds_run else None
        if holds_run and config.resume != "auto":
            raise ConfigError(
                f"out = {str(self.path)!r}: holds a run already; name another folder, "
                "or set resume = 'auto' to go on with it"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            _write_text(self.path / "config.toml", tomli_w.dumps(values))
            if holds_run:
                self._cut(rounds)
            self._lines = rounds.open("a", encoding="utf-8")
        except OSError as error:
            raise self._failure(error) from error

    def __enter__(self) -> RunFolder:
        """Return the folder."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file of rounds."""
        self._lines.close()

    def write_round(self, record: RoundRecord, model: ArrayRecord, state: dict[str, Any]) -> None:
        """Append a round's line and, where it is due, write a checkpoint.

        Raises
        ------
        RunFolderError
            If the disk is full or the folder is gone; earlier rounds are safe.
        """
        try:
            self._lines.write(json.dumps(record.to_json()) + "\n")
            self._lines.flush()
            if self._every and record.round % self._every == 0:
                save_checkpoint(self.path / "checkpoint", record.round, model, state)
        except OSError as error:
            raise self._failure(error) from error
        self._written = record.round

    def write_model(self, model: ArrayRecord) -> None:
        """Write `model.safetensors`.

        Raises
        ------
        RunFolderError
            As `write_round`.
        """
        try:
            save_model(self.path / "model.safetensors", model)
        except OSError as error:
            raise self._failure(error) from error

    def _resume(self, values: Mapping[str, Any]) -> Checkpoint | None:
        if values["resume"] != "auto":
            return None
        try:
            before = load_run(self.path).config
        except ValueError as error:
            raise RunFolderError(f"cannot go on with the run: {error}") from error
        for key, value in values.items():
            if key not in _MAY_CHANGE and before.get(key) != value:
                raise ConfigError(
                    f"{key} = {value!r}: the run in {self.path} has {before.get(key)!r}; "
                    "a run goes on with the configuration it began with"
                )
        return load_latest(self.path / "checkpoint")

    def _cut(self, rounds: Path) -> None:
        """Drop the rounds after the checkpoint: they are run again, with the same outcome."""
        done = self.checkpoint.round if self.checkpoint else 0
        kept = [line for line in load_run(self.path).rounds if line["round"] <= done]
        _write_text(rounds, "".join(json.dumps(line) + "\n" for line in kept))
        self._written = done

    def _failure(self, error: OSError) -> RunFolderError:
        safe = f"rounds 1 to {self._written} are safe" if self._written else "no round was lost"
        return RunFolderError(f"cannot write {self.path}: {error.strerror or error}; {safe}")


def _write_text(file: Path, text: str) -> None:
    """Write a file whole or not at all: a full disk leaves the one that was there."""
    partial = file.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, file)
