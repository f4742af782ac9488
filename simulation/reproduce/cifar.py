"""CIFAR made small, for machines on which the paper's scale takes days."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tasks.data import stored_arrays

__all__ = ["cifar10_features", "cifar100_features", "small_cifar10"]

Arrays = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]

_PATCH = 5  # pixels
_FILTERS = 256
_REGULARISER = 0.1  # of variances, on standardised pixels
_THRESHOLD = 0.25


def small_cifar10(data_dir: str) -> Arrays:
    """Return 500 training and 200 test images a class of CIFAR-10, at half the resolution.

    Parameters
    ----------
    data_dir : str
        As `tasks.data.load_dataset` takes it for `cifar10`.

    Returns
    -------
    x_train (5000, 3, 16, 16), y_train (5000,), x_test (2000, 3, 16, 16), y_test (2000,): the first
    images of each class, 2×2 pixels averaged, each channel standardised by the training images.

    Raises
    ------
    ValueError
        If the data is not found or cannot be read.
    """
    return _small("cifar10", data_dir, train=500, test=200)


def cifar10_features(data_dir: str) -> Arrays:
    """Return what fixed, unsupervised filters see in the images of `small_cifar10`.

    A linear model on them stands in for fine-tuning a pre-trained network, which a small machine
    cannot. Filters are whitened random patches of the training images; their responses beyond a
    threshold are averaged over the four quadrants and standardised. The labels have no part in it.

    Returns
    -------
    x_train (5000, 1024), y_train (5000,), x_test (2000, 1024), y_test (2000,); always the same.
    """
    return _features(_small("cifar10", data_dir, train=500, test=200))


def cifar100_features(data_dir: str) -> Arrays:
    """Return the same of 100 training and 20 test images a class of CIFAR-100."""
    return _features(_small("cifar100", data_dir, train=100, test=20))


def _small(name: str, data_dir: str, *, train: int, test: int) -> Arrays:
    stored = stored_arrays(name, data_dir)
    rows = [_first_of_each(stored.y_train, train), _first_of_each(stored.y_test, test)]
    x_train, x_test = _halved(stored.x_train[rows[0]]), _halved(stored.x_test[rows[1]])
    mean = x_train.mean(axis=(0, 2, 3), keepdims=True)
    deviation = x_train.std(axis=(0, 2, 3), keepdims=True)
    return (
        (x_train - mean) / deviation,
        stored.y_train[rows[0]],
        (x_test - mean) / deviation,
        stored.y_test[rows[1]],
    )


def _first_of_each(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    return np.concatenate([np.flatnonzero(labels == k)[:count] for k in np.unique(labels)])


def _halved(images: NDArray[Any]) -> NDArray[np.float32]:
    n, channels, height, width = images.shape
    blocks = images.reshape(n, channels, height // 2, 2, width // 2, 2)
    return np.asarray(blocks.mean(axis=(3, 5), dtype=np.float32))


def _features(images: Arrays) -> Arrays:
    x_train, y_train, x_test, y_test = images
    filters, centre = _filters(x_train, np.random.default_rng(0))
    train, test = (_responses(x, filters, centre) for x in (x_train, x_test))
    mean, deviation = train.mean(axis=0), train.std(axis=0) + np.float32(1e-3)
    return (train - mean) / deviation, y_train, (test - mean) / deviation, y_test


def _filters(
    x: NDArray[np.float32], rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return unit patches that also whiten what they are applied to, and the mean patch."""
    count = 5000
    rows = rng.integers(len(x), size=count)
    corners = rng.integers(x.shape[2] - _PATCH + 1, size=(count, 2))
    patches = np.stack(
        [
            x[row, :, i : i + _PATCH, j : j + _PATCH].ravel()
            for row, (i, j) in zip(rows, corners, strict=True)
        ]
    ).astype(np.float64)
    patches -= patches.mean(axis=1, keepdims=True)
    patches /= np.sqrt(patches.var(axis=1, keepdims=True) + _REGULARISER)
    centre = patches.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov((patches - centre).T))
    whitening = vectors / np.sqrt(values + _REGULARISER) @ vectors.T
    chosen = (patches[:_FILTERS] - centre) @ whitening
    chosen /= np.linalg.norm(chosen, axis=1, keepdims=True)
    return (chosen @ whitening).astype(np.float32), centre.astype(np.float32)


def _responses(
    x: NDArray[np.float32], filters: NDArray[np.float32], centre: NDArray[np.float32]
) -> NDArray[np.float32]:
    side = x.shape[2] - _PATCH + 1
    weight, offset = torch.from_numpy(filters), torch.from_numpy(centre)[:, None]
    parts = []
    for start in range(0, len(x), 500):
        patches = torch.nn.functional.unfold(torch.from_numpy(x[start : start + 500]), _PATCH)
        patches = patches - patches.mean(dim=1, keepdim=True)
        variance = patches.var(dim=1, keepdim=True, correction=0)
        patches = patches / torch.sqrt(variance + _REGULARISER) - offset
        seen = torch.relu(weight @ patches - _THRESHOLD).reshape(len(patches), -1, side, side)
        parts.append(torch.nn.functional.avg_pool2d(seen, side // 2).flatten(1))
    return torch.cat(parts).numpy()
