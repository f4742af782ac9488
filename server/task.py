"""What the server does with torch: the model that training starts from, and evaluations.

torch is imported by what uses it. It takes half a gigabyte in a build for GPUs, and a server that
evaluates nothing never has it in memory while its clients' models come in.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from numpy.typing import NDArray

from server.config import RunConfig
from server.errors import RunAborted
from strategies.arrays import view
from tasks.data import TestData, load_test_data

__all__ = ["Start", "Task"]


@dataclass(frozen=True)
class Start:
    """The model that training starts from, as arrays, and the number of classes it tells apart."""

    weights: dict[str, NDArray[Any]]
    num_classes: int


class Task:
    """The data and the model that a run config names.

    `start` and `evaluate` raise `RunAborted` if the data is not found or the model does not fit it.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    def start(self) -> Start:
        """Return what training starts from."""
        from tasks.learning import get_weights
        from tasks.models import initial_model

        test, config = self._test, self._config
        shape = test.x_test.shape[1:]
        try:
            model = initial_model(config.model, shape, test.num_classes, seed=config.seed)
        except ValueError as error:
            raise RunAborted(str(error)) from error
        return Start(get_weights(model), test.num_classes)

    def evaluate(self, arrays: ArrayRecord) -> MetricRecord:
        """Return the accuracy and the loss of a model on the test data."""
        from tasks.learning import evaluate, set_weights
        from tasks.models import build_model

        test, config = self._test, self._config
        # Built anew: kept, it would take a second model's memory between the evaluations.
        shape = test.x_test.shape[1:]
        model = build_model(config.model, shape, test.num_classes, seed=config.seed)
        set_weights(model, {name: view(array) for name, array in arrays.items()})
        accuracy, loss = evaluate(model, test.x_test, test.y_test)
        return MetricRecord({"accuracy": accuracy, "loss": loss})

    @cached_property
    def _test(self) -> TestData:
        config = self._config
        try:
            return load_test_data(config.dataset, config.data_dir, seed=config.seed)
        except ValueError as error:
            raise RunAborted(str(error)) from error
