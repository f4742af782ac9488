"""The data of one client: its share of a data set, or a site's own file."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks._arrays import LabelledArrays, scaled
from tasks._cache import cached_arrays
from tasks._sources import NPZ_ARRAYS, image_folder, labelled_arrays, npz_file
from tasks.partition import check_split, matching_test_indices, partition

__all__ = ["ClientData", "client_data", "site_data"]

# What a process keeps of its clients' data. A simulation of many clients must not hold a float32
# copy of everything in each Ray actor; cutting a share out again takes milliseconds.
_KEPT_BYTES = 512 << 20


@dataclass(frozen=True)
class ClientData:
    """One client's training and test data; the arrays are read-only.

    Attributes
    ----------
    x_train, x_test : arrays of shape (n, C, H, W) for images, else (n, ...), float32
    y_train, y_test : arrays of shape (n,), int64, labels from 0 to num_classes - 1
    num_classes : int
        Of the whole data set; of a site's own `.npz`, the largest label it holds plus one.
    """

    x_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    num_classes: int


class _Kept:
    """The most recently used `ClientData`, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: OrderedDict[Hashable, tuple[ClientData, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], ClientData]) -> ClientData:
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key][0]
            data = make()
            arrays = (data.x_train, data.y_train, data.x_test, data.y_test)
            size = sum(array.nbytes for array in arrays)
            self._items[key] = (data, size)
            self._bytes += size
            while self._bytes > self._limit and len(self._items) > 1:
                _, (_, dropped) = self._items.popitem(last=False)
                self._bytes -= dropped
            return data

    def clear(self) -> None:
        with self._lock:
            self._items.clear()
            self._bytes = 0


_kept = _Kept(_KEPT_BYTES)


def client_data(
    dataset: str,
    data_dir: str,
    partitioner: str,
    partition_id: int,
    num_partitions: int,
    *,
    shards_per_client: int,
    alpha: float,
    seed: int,
) -> ClientData:
    """Return one client's share of a data set, the same in every process.

    The training rows come from `tasks.partition.partition`, the test rows from
    `matching_test_indices`. The data set and the split are kept on disk (`tasks._cache`), so that a
    later process maps them and reads only its own rows.

    Parameters
    ----------
    dataset, data_dir : str
        As `tasks.data.load_dataset` takes them.
    partitioner, num_partitions, shards_per_client, alpha
        As `tasks.partition.partition` takes them.
    partition_id : int
        From 0 to `num_partitions - 1`.
    seed : int
        Of the data set, the split and the test rows.

    Raises
    ------
    ValueError
        In one line, as `load_dataset` and `partition` raise it, and for a `partition_id` outside
        its range.
    """
    check_split(partitioner, num_partitions, shards_per_client, alpha, seed)
    if not 0 <= partition_id < num_partitions:
        raise ValueError(
            f"partition-id={partition_id}: must be from 0 to {num_partitions - 1} "
            f"(num-partitions={num_partitions})"
        )
    # What a partitioner does not use must not make another entry.
    split = (
        partitioner,
        num_partitions,
        shards_per_client if partitioner == "shards" else 1,
        float(alpha) if partitioner == "dirichlet" else 1.0,
        seed,
    )

    def cut() -> ClientData:
        arrays = labelled_arrays(dataset, data_dir, seed)
        rows, ends = _split(dataset, data_dir, *split)
        own = rows[(ends[partition_id - 1] if partition_id else 0) : ends[partition_id]]
        y_train = arrays.y_train[own]
        # Its own stream for each client; the last number tells it from the other uses of the seed.
        sequence = np.random.SeedSequence((seed, partition_id, 0x7E57))
        test = matching_test_indices(
            y_train, arrays.y_test, seed=int(sequence.generate_state(1, np.uint64)[0])
        )
        return _read_only(
            LabelledArrays(
                arrays.x_train[own],
                y_train,
                arrays.x_test[test],
                arrays.y_test[test],
                arrays.num_classes,
            )
        )

    return _kept.get((dataset, data_dir, partition_id, *split), cut)


def site_data(path: str) -> ClientData:
    """Return a site's own data.

    Parameters
    ----------
    path : str
        An `.npz` with `x_train`, `y_train`, `x_test`, `y_test` in the Keras convention: images as
        uint8 of shape (n, H, W) or (n, H, W, C), brought to channels first and [0, 1], or floating
        point as it is (channels first); labels as integers from 0. Or a folder or zip of images as
        `load_dataset("image-folder", path)` reads it, in which every site must have the same class
        folders, if need be empty.

    Raises
    ------
    ValueError
        In one line that names the file and what is wrong with it.
    """
    file = Path(path)
    try:
        changed = file.stat().st_mtime_ns
    except OSError as error:
        raise ValueError(
            f"site data {path}: cannot be read ({error.strerror}); expected an .npz with x_train, "
            "y_train, x_test, y_test, or a folder of images"
        ) from error
    return _kept.get((str(file.absolute()), changed), lambda: _read_only(_read_site(file)))


def _read_site(file: Path) -> LabelledArrays:
    if file.is_dir() or file.suffix.lower() == ".zip":
        return image_folder(file, seed=0)
    if file.suffix.lower() != ".npz":
        raise ValueError(
            f"site data {file}: expected an .npz with {', '.join(NPZ_ARRAYS)}, "
            "or a folder or zip of images"
        )
    return npz_file(file, where=f"site data {file}")


@lru_cache(maxsize=8)
def _split(
    dataset: str,
    data_dir: str,
    partitioner: str,
    num_partitions: int,
    shards_per_client: int,
    alpha: float,
    seed: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all clients' training rows, one client after the other, and where each ends."""
    labels = labelled_arrays(dataset, data_dir, seed).y_train

    def build() -> dict[str, NDArray[Any]]:
        clients = partition(
            labels,
            partitioner,
            num_partitions,
            shards_per_client=shards_per_client,
            alpha=alpha,
            seed=seed,
        )
        ends = np.cumsum([len(rows) for rows in clients])
        return {"rows": np.concatenate(clients), "ends": ends.astype(np.int64)}

    # The labels themselves are in the key, so a user's function that returns other data is noticed.
    key = {
        "labels": hashlib.sha256(labels.tobytes()).hexdigest(),
        "partitioner": partitioner,
        "num_partitions": num_partitions,
        "shards_per_client": shards_per_client,
        "alpha": alpha,
        "seed": seed,
    }
    arrays = cached_arrays("partitions", key, build)
    return arrays["rows"], arrays["ends"]


def _read_only(arrays: LabelledArrays) -> ClientData:
    data = ClientData(
        scaled(arrays.x_train),
        arrays.y_train,
        scaled(arrays.x_test),
        arrays.y_test,
        arrays.num_classes,
    )
    for array in (data.x_train, data.y_train, data.x_test, data.y_test):
        array.setflags(write=False)
    return data
