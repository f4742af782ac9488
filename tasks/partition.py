"""How labelled data is split over clients."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks._callables import one_line

__all__ = ["PARTITIONERS", "check_split", "matching_test_indices", "partition"]

PARTITIONERS = ("shards", "dirichlet", "iid", "groups")


def partition(
    labels: NDArray[np.int64],
    partitioner: str,
    num_partitions: int,
    *,
    shards_per_client: int = 2,
    alpha: float = 0.5,
    seed: int = 0,
) -> tuple[NDArray[np.int64], ...]:
    """Split the rows of a data set over clients; the same arguments give the same split.

    No row goes to two clients. `shards`, `dirichlet` and `iid` are flwr-datasets' partitioners:

    * `shards` (McMahan et al. 2017, section 3): rows sorted by label, cut into
      `num_partitions * shards_per_client` equal shards dealt at random. What is left over when
      the number of rows is no multiple of that is not used, and a shard may span two labels.
    * `dirichlet`: each label's rows are shared by proportions drawn from a symmetric Dirichlet
      distribution with concentration `alpha`; every client gets at least one row.
    * `iid`: rows dealt at random, evenly. flwr-datasets cuts the rows in the order they have, which
      for data sorted by class is the opposite of IID, so they are shuffled first.
    * `groups` (the ADCS paper's setting): client i of N is in group ⌊iC/N⌋, C the number of
      classes; group g holds the rows of class g and its clients share them at random, evenly.
      With fewer clients than classes, the classes of groups without a client are not used.

    Parameters
    ----------
    labels : array of shape (n,), int64
        Label of each row, from 0.
    partitioner : str
        One of `PARTITIONERS`.
    num_partitions : int
        The number of clients.
    shards_per_client : int
        Used by `shards`.
    alpha : float
        Used by `dirichlet`; positive.
    seed : int
        Not negative.

    Returns
    -------
    tuple of `num_partitions` arrays of shape (n_i,), int64: the rows of each client, increasing,
    never empty.

    Raises
    ------
    ValueError
        On an unknown partitioner, a value outside its range, or fewer rows than are needed.
    """
    check_split(partitioner, num_partitions, shards_per_client, alpha, seed)
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"labels must be integers of shape (n,), got {labels.dtype} {labels.shape}"
        )
    per_client = shards_per_client if partitioner == "shards" else 1
    if len(labels) < num_partitions * per_client:
        needed = f"{num_partitions} clients"
        if partitioner == "shards":
            needed += f" with shards-per-client={shards_per_client}"
        raise ValueError(
            f"{needed} need at least {num_partitions * per_client} training examples, "
            f"the data has {len(labels)}"
        )
    if partitioner == "groups":
        return _groups(labels, num_partitions, seed)
    return _by_flwr_datasets(labels, partitioner, num_partitions, shards_per_client, alpha, seed)


def matching_test_indices(
    train_labels_of_client: NDArray[np.int64],
    test_labels: NDArray[np.int64],
    *,
    seed: int,
    limit: int = 1000,
) -> NDArray[np.int64]:
    """Pick test rows with the label distribution of a client's training data.

    With p the client's label shares, the size M is the largest up to `limit` for which the test
    data has M p_k rows of every label k. The rows of label k number M p_k, rounded down or up
    (largest remainders first, then lower labels). Labels without any test row are left out of p.
    Different clients may get the same rows.

    Parameters
    ----------
    train_labels_of_client : array of shape (n,), int64
    test_labels : array of shape (m,), int64
    seed : int
        The same arguments give the same rows.
    limit : int
        Largest number of rows, at least 1.

    Returns
    -------
    array of shape (M,), int64: rows of `test_labels`, increasing.

    Raises
    ------
    ValueError
        If `limit` is below 1 or no test row has any of the client's labels.
    """
    if limit < 1:
        raise ValueError(f"limit={limit}: must be at least 1")
    classes = 1 + int(max(train_labels_of_client.max(initial=-1), test_labels.max(initial=-1)))
    available = np.bincount(test_labels, minlength=classes)
    counts = np.bincount(train_labels_of_client, minlength=classes) * (available > 0)
    total = int(counts.sum())
    if total == 0:
        held = np.unique(train_labels_of_client).tolist()
        raise ValueError(f"no test example has any of the client's labels {held}")

    # In integers: M c_k / n <= t_k exactly, with no rounding to argue about.
    held_counts, held_available = counts[counts > 0], available[counts > 0]
    size = min(limit, int((held_available * total // held_counts).min()))
    wanted, remainders = np.divmod(counts * size, total)
    missing = size - int(wanted.sum())
    wanted[np.argsort(-remainders, kind="stable")[:missing]] += 1

    rng = np.random.default_rng(seed)
    by_label = np.argsort(test_labels, kind="stable")
    ends = np.cumsum(available)
    picked = [
        rng.choice(by_label[ends[k] - available[k] : ends[k]], wanted[k], replace=False)
        for k in np.flatnonzero(wanted)
    ]
    return np.sort(np.concatenate(picked)).astype(np.int64, copy=False)


def check_split(
    partitioner: str, num_partitions: int, shards_per_client: int, alpha: float, seed: int
) -> None:
    """Raise ValueError unless the arguments of `partition` are in range, whatever the data."""
    if partitioner not in PARTITIONERS:
        raise ValueError(f"partitioner {partitioner!r}: must be one of {', '.join(PARTITIONERS)}")
    if num_partitions < 1:
        raise ValueError(f"num-partitions={num_partitions}: must be at least 1")
    if shards_per_client < 1:
        raise ValueError(f"shards-per-client={shards_per_client}: must be at least 1")
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha={alpha}: must be a finite number above 0")
    if seed < 0:
        raise ValueError(f"seed={seed}: must be at least 0")


def _groups(
    labels: NDArray[np.int64], num_partitions: int, seed: int
) -> tuple[NDArray[np.int64], ...]:
    classes = 1 + int(labels.max())
    group = np.arange(num_partitions) * classes // num_partitions
    rng = np.random.default_rng(seed)
    clients: list[NDArray[np.int64]] = []
    for g in np.unique(group):
        rows = rng.permutation(np.flatnonzero(labels == g))
        members = int((group == g).sum())
        if len(rows) < members:
            raise ValueError(
                f"partitioner 'groups': class {g} has {len(rows)} training examples for "
                f"{members} clients, each needs at least one"
            )
        clients.extend(np.sort(share) for share in np.array_split(rows, members))
    return tuple(clients)


def _by_flwr_datasets(
    labels: NDArray[np.int64],
    partitioner: str,
    num_partitions: int,
    shards_per_client: int,
    alpha: float,
    seed: int,
) -> tuple[NDArray[np.int64], ...]:
    import datasets
    from flwr_datasets import partitioner as flwr

    rows = np.arange(len(labels))
    splitter: Any
    if partitioner == "shards":
        splitter = flwr.ShardPartitioner(
            num_partitions, "label", num_shards_per_partition=shards_per_client, seed=seed
        )
    elif partitioner == "dirichlet":
        # Its default of 10 rows for every client fails where there are many small clients.
        splitter = flwr.DirichletPartitioner(
            num_partitions, "label", alpha=float(alpha), min_partition_size=1, seed=seed
        )
    else:
        rows = np.random.default_rng(seed).permutation(rows)
        splitter = flwr.IidPartitioner(num_partitions)
    splitter.dataset = datasets.Dataset.from_dict({"index": rows, "label": labels[rows]})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns at every draw that it repeats
            # Whole batches: a column taken without [:] is read row by row, 60,000 rows in 10 s.
            parts = [splitter.load_partition(i)[:]["index"] for i in range(num_partitions)]
    except ValueError as error:
        raise ValueError(
            f"partitioner {partitioner!r} cannot give each of {num_partitions} clients data "
            f"(alpha={alpha}, shards-per-client={shards_per_client}): use fewer clients or a "
            f"larger alpha ({one_line(error)})"
        ) from error
    return tuple(np.sort(np.asarray(part, dtype=np.int64)) for part in parts)
