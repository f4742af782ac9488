"""Local work on a torch model: SGD steps and losses. Imported only when a client trains."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from torch import nn

from client.settings import TrainSettings
from strategies.arrays import pack, view
from strategies.messages import Arrays
from tasks.client_data import ClientData
from tasks.learning import get_weights, logits, set_weights
from tasks.models import build_model

__all__ = [
    "first_gradient",
    "load_model",
    "losses",
    "read_model",
    "train",
    "use_threads",
]


def use_threads(count: int) -> None:
    """Train with this many CPU threads; sums are split, and so rounded, by their number."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


@lru_cache(maxsize=4)
def _model(name: str, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    # The weights are overwritten before use, so the seed does not matter.
    return build_model(name, input_shape, num_classes, seed=0)


def load_model(name: str, num_classes: int, data: ClientData, arrays: ArrayRecord) -> nn.Module:
    """Return the model with the weights of `arrays`.

    A process has one module per kind of model and loads weights into it: building one takes longer
    than a training step.

    Raises
    ------
    ValueError
        If the arrays do not fit the model, or the client's labels the server's number of classes.
    """
    if data.num_classes > num_classes:
        raise ValueError(f"labels go up to {data.num_classes - 1}: must be below {num_classes}")
    model = _model(name, data.x_train.shape[1:], num_classes)
    set_weights(model, {key: view(array) for key, array in arrays.items()})
    return model


def read_model(model: nn.Module) -> ArrayRecord:
    """Return the model's weights and buffers."""
    return pack(get_weights(model))


def train(
    model: nn.Module, data: ClientData, settings: TrainSettings, rng: np.random.Generator
) -> tuple[float, float]:
    """Run the local steps of plain SGD in place.

    Batches are drawn without replacement, a fresh shuffle whenever the examples run out; the last
    batch before a shuffle may be smaller.

    Parameters
    ----------
    model : Module
        Changed in place.
    data : ClientData
        The client's training data.
    settings : TrainSettings
        Local steps, batch size, learning rate.
    rng : Generator
        Draws the batches.

    Returns
    -------
    (float, float)
        Mean loss over the mini-batches, and the loss on the first one before any step.
    """
    x, y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train)
    optimiser = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)
    model.train()
    batch_losses = []
    for rows in _batches(len(y), settings.batch_size, settings.local_steps, rng):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        batch_losses.append(loss.item())
    return float(np.mean(batch_losses)), batch_losses[0]


def first_gradient(
    model: nn.Module, data: ClientData, settings: TrainSettings, rng: np.random.Generator
) -> tuple[Arrays, float]:
    """Return the gradient on the first mini-batch that `train` would draw, and its loss.

    The gradient has an entry for every floating-point array of the model, 0 for buffers.
    """
    x, y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train)
    rows = next(_batches(len(y), settings.batch_size, 1, rng))
    model.train()
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {n: p.grad for n, p in model.named_parameters(remove_duplicate=False)}
    # Buffers, such as running means, have none; a sketch covers every floating-point array.
    gradient = {
        name: np.zeros_like(value) if (own := gradients.get(name)) is None else own.numpy().copy()
        for name, value in get_weights(model).items()
        if np.issubdtype(value.dtype, np.floating)
    }
    model.zero_grad()
    return gradient, loss.item()


def losses(model: nn.Module, data: ClientData) -> NDArray[np.float64]:
    """Return the model's loss on each training example, shape (n,), float64."""
    labels = torch.from_numpy(data.y_train)
    values = nn.functional.cross_entropy(logits(model, data.x_train), labels, reduction="none")
    return values.numpy().astype(np.float64)


def _batches(
    examples: int, batch_size: int, steps: int, rng: np.random.Generator
) -> Iterator[torch.Tensor]:
    order = rng.permutation(examples)
    start = 0
    for _ in range(steps):
        if start >= examples:
            order, start = rng.permutation(examples), 0
        yield torch.from_numpy(order[start : start + batch_size])
        start += batch_size
