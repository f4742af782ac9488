"""Which data and which model: the part of the run config that clients read too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["MODELS", "TaskConfig"]

# Here and not with the models, which import torch.
MODELS = ("softmax", "cnn", "vgg16", "vgg16-imagenet")


@dataclass(frozen=True)
class TaskConfig:
    """What is learned, and how the data is split.

    Flower hands the run config to every client, so this needs no message. The values have been
    checked by the server's `RunConfig`.
    """

    dataset: str
    data_dir: str
    model: str
    partitioner: str
    shards_per_client: int
    alpha: float
    seed: int

    @classmethod
    def from_run_config(cls, values: Mapping[str, bool | float | int | str]) -> TaskConfig:
        """Pick this part out of a run config.

        Raises
        ------
        KeyError
            If a key is missing.
        """
        return cls(
            dataset=str(values["dataset"]),
            data_dir=str(values["data-dir"]),
            model=str(values["model"]),
            partitioner=str(values["partitioner"]),
            shards_per_client=int(values["shards-per-client"]),
            alpha=float(values["alpha"]),
            seed=int(values["seed"]),
        )
