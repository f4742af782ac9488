"""What a message asks of a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from flwr.app import ConfigRecord

from strategies.sketch import SketchKind, SketchSpec

__all__ = ["SketchSettings", "TrainSettings"]


@dataclass(frozen=True)
class TrainSettings:
    """How to train: the `config` of every message that asks for training."""

    round: int
    seed: int
    local_steps: int
    batch_size: int
    learning_rate: float
    threads: int
    needs: frozenset[str]

    @classmethod
    def read(cls, config: ConfigRecord) -> TrainSettings:
        """Read a message's config.

        Raises
        ------
        KeyError
            If the server left one out.
        """
        values = cast("dict[str, Any]", config)
        return cls(
            round=values["round"],
            seed=values["seed"],
            local_steps=values["local-steps"],
            batch_size=values["batch-size"],
            learning_rate=values["learning-rate"],
            threads=values["client-threads"],
            needs=frozenset(values["needs"]),
        )


@dataclass(frozen=True)
class SketchSettings:
    """What to answer to the roll call, on top of `TrainSettings`."""

    spec: SketchSpec
    of: Literal["update", "gradient"]
    keep: bool
    train_needs: frozenset[str]

    @classmethod
    def read(cls, config: ConfigRecord) -> SketchSettings:
        """Read a message's config.

        Raises
        ------
        KeyError, ValueError
            If the server left one out, or the sketch is out of range.
        """
        values = cast("dict[str, Any]", config)
        return cls(
            spec=SketchSpec(
                ratio=values["sketch-ratio"],
                kind=cast("SketchKind", values["sketch-kind"]),
                layers=tuple(values["sketch-layers"]),
                seed=values["sketch-seed"],
            ),
            of=values["sketch-of"],
            keep=values["keep"],
            train_needs=frozenset(values["train-needs"]),
        )
