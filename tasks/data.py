"""Data sets by name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks._arrays import LabelledArrays, scaled
from tasks._sources import DATASETS, labelled_arrays

__all__ = [
    "DATASETS",
    "Dataset",
    "LabelledArrays",
    "TestData",
    "load_dataset",
    "load_test_data",
    "stored_arrays",
]


@dataclass(frozen=True)
class Dataset:
    """Labelled training and test data.

    Attributes
    ----------
    x_train, x_test : arrays of shape (n, C, H, W) for images, else (n, ...), float32
    y_train, y_test : arrays of shape (n,), int64, labels from 0 to num_classes - 1
    num_classes : int
    """

    x_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    num_classes: int


@dataclass(frozen=True)
class TestData:
    """The test part of a `Dataset`, all that a server needs.

    Attributes
    ----------
    x_test : array as in `Dataset`, but as stored: images as uint8, mapped and not read
    y_test, num_classes : as in `Dataset`
    """

    __test__ = False  # not a class of tests, whatever pytest thinks of the name

    x_test: NDArray[np.uint8] | NDArray[np.float32]
    y_test: NDArray[np.int64]
    num_classes: int


def load_dataset(name: str, data_dir: str = "", *, seed: int = 0) -> Dataset:
    """Load a data set, reading its source only the first time on a machine.

    Parameters
    ----------
    name : str
        * `digits`: scikit-learn's 1,797 images of 8×8 pixels, four fifths of each class for
          training, drawn by `seed`.
        * `fashion-mnist`: its four IDX files, gzipped or not, in `data_dir`, in `FashionMNIST/raw`
          there, or where the Debian package `dataset-fashion-mnist` puts them.
        * `cifar10`, `cifar100`: in `data_dir`, as torchvision's own copy or as images in
          `train/<class>/` and `test/<class>/`, in a folder or a zip such as `cifar10-images.zip`;
          or `data_dir` is that folder or zip.
        * `image-folder`: `data_dir` is a folder or zip with `train/<class>/` and `test/<class>/`,
          or with `<class>/` alone, of which a fifth is held out by `seed`. All images have one
          size; classes are numbered by name.
        * `npz`: `data_dir` is an `.npz` file with `x_train`, `y_train`, `x_test`, `y_test`, in the
          format of `tasks.client_data.site_data`.
        * `module:function`: called as `f(data_dir)`; returns (x_train, y_train, x_test, y_test) or
          ((x_train, y_train), (x_test, y_test)). uint8 images may be (n, H, W), (n, H, W, C) or
          (n, C, H, W) and are scaled to [0, 1]; floating point is taken as it is.
        Where Fashion-MNIST or CIFAR is not found, torchvision downloads it into the cache.
    data_dir : str
        Folder or zip; not used by `digits`.
    seed : int
        Of the split into training and test data where the source has none.

    Raises
    ------
    ValueError
        In one line: on an unknown name, data that is not found or cannot be read, or a function
        that cannot be imported, fails or returns something else.
    """
    arrays = labelled_arrays(name, data_dir, seed)
    return Dataset(
        scaled(arrays.x_train),
        arrays.y_train,
        scaled(arrays.x_test),
        arrays.y_test,
        arrays.num_classes,
    )


def load_test_data(name: str, data_dir: str = "", *, seed: int = 0) -> TestData:
    """Load only the test part, as `load_dataset` does with the same arguments, but unscaled."""
    arrays = labelled_arrays(name, data_dir, seed)
    return TestData(arrays.x_test, arrays.y_test, arrays.num_classes)


def stored_arrays(name: str, data_dir: str = "", *, seed: int = 0) -> LabelledArrays:
    """Return what `load_dataset` loads as it is stored, images as uint8, mapped and not read."""
    return labelled_arrays(name, data_dir, seed)
