"""Local work on a torch model: SGD steps and losses. Imported only when a client trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
    "Trained",
    "first_gradient",
    "load_model",
    "losses",
    "softmax_cohort_first_losses",
    "softmax_cohort_losses",
    "train",
    "train_softmax_cohort",
    "use_threads",
]


@dataclass(frozen=True)
class Trained:
    """A model after the local steps, and losses of mini-batches, each before its step.

    Attributes
    ----------
    arrays : ArrayRecord
        The model's weights and buffers.
    loss, first_loss : float
        Mean over all mini-batches, and of the first.
    """

    arrays: ArrayRecord
    loss: float
    first_loss: float


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


def train(
    model: nn.Module, data: ClientData, settings: TrainSettings, rng: np.random.Generator
) -> Trained:
    """Run the local steps of plain SGD.

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

    """
    x, y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train)
    parameters = list(model.parameters())
    model.train()
    batch_losses = []
    for rows in _batches(len(y), settings.batch_size, settings.local_steps, rng):
        batch = torch.from_numpy(rows)
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.sub_(gradient, alpha=settings.learning_rate)
        batch_losses.append(loss.item())
    return Trained(pack(get_weights(model)), float(np.mean(batch_losses)), batch_losses[0])


def train_softmax_cohort(
    cohort: Sequence[ClientData],
    arrays: ArrayRecord,
    settings: TrainSettings,
    rngs: Sequence[np.random.Generator],
) -> list[Trained]:
    """Train softmax regression for several clients in one batched computation.

    Equals `train` on each client within float32 rounding: products are summed in another order.

    Parameters
    ----------
    cohort : sequence of K ClientData
        The clients' training data.
    arrays : ArrayRecord
        The model all start from: a weight of shape (C, d) and a bias of shape (C,).
    settings : TrainSettings
        Local steps, batch size, learning rate.
    rngs : sequence of K Generator
        Draw each client's batches.
    """
    names = list(arrays)
    weights, biases = (start.clone() for start in _for_each(cohort, arrays))
    rows = [
        list(_batches(len(data.y_train), settings.batch_size, settings.local_steps, rng))
        for data, rng in zip(cohort, rngs, strict=True)
    ]
    batch_losses = np.empty((len(cohort), settings.local_steps))
    for step in range(settings.local_steps):
        x, residuals, losses = _softmax_step(
            cohort, [batches[step] for batches in rows], weights, biases
        )
        # The gradient of the mean cross-entropy: residuals are its derivative by the logits.
        weights.baddbmm_(residuals.transpose(1, 2), x, alpha=-settings.learning_rate)
        biases.sub_(residuals.sum(dim=1), alpha=settings.learning_rate)
        batch_losses[:, step] = losses
    means, firsts = batch_losses.mean(axis=1).tolist(), batch_losses[:, 0].tolist()
    return [
        Trained(pack(dict(zip(names, arrays, strict=True)), copy=False), mean, first)
        for *arrays, mean, first in zip(weights.numpy(), biases.numpy(), means, firsts, strict=True)
    ]


def softmax_cohort_first_losses(
    cohort: Sequence[ClientData],
    arrays: ArrayRecord,
    settings: TrainSettings,
    rngs: Sequence[np.random.Generator],
) -> list[float]:
    """Return the losses of `first_gradient` of several clients under one softmax regression.

    Parameters are those of `train_softmax_cohort`; equal within float32 rounding.
    """
    rows = [
        next(_batches(len(data.y_train), settings.batch_size, 1, rng))
        for data, rng in zip(cohort, rngs, strict=True)
    ]
    weights, biases = _for_each(cohort, arrays)
    _, _, losses = _softmax_step(cohort, rows, weights, biases)
    return [float(loss) for loss in losses]


def _for_each(
    cohort: Sequence[ClientData], arrays: ArrayRecord
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return views of weight and bias, (K, C, d) and (K, C)."""
    weight, bias = (torch.from_numpy(array.numpy()) for array in arrays.values())
    return weight.expand(len(cohort), *weight.shape), bias.expand(len(cohort), *bias.shape)


def _softmax_step(
    cohort: Sequence[ClientData],
    rows: Sequence[NDArray[np.int64]],
    weights: torch.Tensor,
    biases: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, NDArray[np.float32]]:
    """Return one mini-batch of each client, what it derives by the logits, and its mean loss.

    Shapes (K, b, d), (K, b, C) and (K,). Shorter batches are padded to the longest, b, with rows
    that weigh nothing.
    """
    sizes = [len(own) for own in rows]
    x = np.zeros((len(cohort), max(sizes), weights.shape[2]), np.float32)
    y = np.zeros(x.shape[:2], np.int64)
    share = np.zeros(x.shape[:2], np.float32)
    for k, (data, own, size) in enumerate(zip(cohort, rows, sizes, strict=True)):
        x[k, :size] = data.x_train.reshape(len(data.x_train), -1)[own]
        y[k, :size] = data.y_train[own]
        share[k, :size] = 1 / size
    inputs, labels, shares = torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(share)
    labels, shares = labels.unsqueeze(2), shares.unsqueeze(2)
    logits = torch.baddbmm(biases.unsqueeze(1), inputs, weights.transpose(1, 2))
    log_shares = torch.log_softmax(logits, dim=2)
    losses = -(log_shares.gather(2, labels) * shares).sum(dim=(1, 2))
    residuals = log_shares.exp_()
    residuals.scatter_add_(2, labels, torch.full_like(shares, -1.0))
    return inputs, residuals.mul_(shares), losses.numpy()


def first_gradient(
    model: nn.Module, data: ClientData, settings: TrainSettings, rng: np.random.Generator
) -> tuple[Arrays, float]:
    """Return the gradient on the first mini-batch that `train` would draw, and its loss.

    The gradient has an entry for every floating-point array of the model, 0 for buffers.
    """
    x, y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train)
    rows = torch.from_numpy(next(_batches(len(y), settings.batch_size, 1, rng)))
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


def softmax_cohort_losses(cohort: Sequence[ClientData], arrays: ArrayRecord) -> list[float]:
    """Return the mean of `losses` of several clients under one softmax regression.

    Equals `losses` within float32 rounding. Clients are shared out to torch's inter-op threads,
    each of which computes with as many threads as `use_threads` set: who falls to which does not
    matter.

    Parameters
    ----------
    cohort : sequence of K ClientData
        The clients' training data.
    arrays : ArrayRecord
        The model: a weight of shape (C, d) and a bias of shape (C,).
    """
    weight, bias = (torch.from_numpy(array.numpy()) for array in arrays.values())

    def mean_loss(data: ClientData) -> float:
        x = torch.from_numpy(data.x_train.reshape(len(data.x_train), -1))
        outputs = torch.addmm(bias.unsqueeze(1), weight, x.T)  # (C, n), so that sums run along n
        of_label = outputs.gather(0, torch.from_numpy(data.y_train).unsqueeze(0)).squeeze(0)
        return (torch.logsumexp(outputs, dim=0) - of_label).double().mean().item()

    # A thread computes with all cores, and so rounds differently, until it asks for their number.
    threads = ThreadPoolExecutor(torch.get_num_interop_threads(), initializer=torch.get_num_threads)
    with threads as pool:
        return list(pool.map(mean_loss, cohort))


def _batches(
    examples: int, batch_size: int, steps: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    order = rng.permutation(examples)
    start = 0
    for _ in range(steps):
        if start >= examples:
            order, start = rng.permutation(examples), 0
        yield order[start : start + batch_size]
        start += batch_size
