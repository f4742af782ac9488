from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.learning import evaluate, logits
from tasks.models import build_model


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 20, 20)])
def test_outputs_do_not_depend_on_the_batches(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (150, *shape), dtype=np.uint8)
    model = build_model("cnn", shape, 5, seed=0)
    with torch.no_grad():
        whole = model(torch.from_numpy(x / np.float32(255)))
    torch.testing.assert_close(logits(model, x), whole)


def test_stored_images_are_evaluated_as_scaled_ones() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (99, 1, 8, 8), dtype=np.uint8), rng.integers(0, 5, 99)
    model = build_model("softmax", (1, 8, 8), 5, seed=0)
    scaled = (x / np.float32(255)).astype(np.float32)
    assert evaluate(model, x, y) == evaluate(model, scaled, y)
