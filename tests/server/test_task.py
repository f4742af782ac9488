from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from server.apart import apart
from server.config import RunConfig
from server.errors import RunAborted
from server.task import Task
from strategies.arrays import pack

ROOT = Path(__file__).parents[2]


def test_training_starts_from_the_same_model_wherever_it_is_made() -> None:
    task = Task(RunConfig(model="cnn", seed=3))
    here, there = task.start(), apart(Task(RunConfig(model="cnn", seed=3)).start)
    assert here.num_classes == there.num_classes == 10
    assert list(here.weights) == list(there.weights)
    for name, values in here.weights.items():
        np.testing.assert_array_equal(values, there.weights[name], strict=True)


def test_evaluates_the_model_it_is_given() -> None:
    task = Task(RunConfig())
    zero = {name: np.zeros_like(values) for name, values in task.start().weights.items()}
    for label in range(10):  # a model that answers `label` whatever it sees
        zero["classifier.bias"] = np.eye(10, dtype=np.float32)[label]
        metrics = task.evaluate(pack(zero))
        assert metrics["accuracy"] == np.mean(task._test.y_test == label)
    assert metrics["loss"] > 0


def test_a_model_that_does_not_fit_the_data_is_told_in_one_line() -> None:
    with pytest.raises(RunAborted, match="model 'vgg16': input shape") as raised:
        Task(RunConfig(model="vgg16")).start()
    assert "\n" not in str(raised.value)


def test_a_start_made_apart_leaves_no_torch_behind() -> None:
    code = (
        "import sys\n"
        "from server.apart import apart\n"
        "from server.config import RunConfig\n"
        "import server.run, server.task\n"
        "if __name__ == '__main__':\n"
        "    apart(server.task.Task(RunConfig()).start)\n"
        "    print(*sorted(set(sys.modules) & {'torch', 'sklearn'}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert ran.stdout.split() == []
