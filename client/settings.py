"""What a message asks of a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from flwr.app import ConfigRecord

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
    num_classes: int
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
            num_classes=values["num-classes"],
            needs=frozenset(values["needs"]),
        )


@dataclass(frozen=True)
class SketchSettings:
    """What to answer to the roll call, on top of `TrainSettings`."""

    of: Literal["update", "gradient"]
    keep: bool
    train_needs: frozenset[str]

    @classmethod
    def read(cls, config: ConfigRecord) -> SketchSettings:
        """Read a message's config.

        Raises
        ------
        KeyError
            If the server left one out.
        """
        values = cast("dict[str, Any]", config)
        return cls(
            of=values["sketch-of"],
            keep=values["keep"],
            train_needs=frozenset(values["train-needs"]),
        )

    def trains(self, needs: frozenset[str]) -> bool:
        """Whether the answer takes the local steps; one mini-batch's loss alone does not."""
        return self.of == "update" and not needs.isdisjoint({"sketch", "norm"})
