"""Who a client is and which data it holds."""

from __future__ import annotations

from flwr.app import Context

from tasks.client_data import ClientData, client_data, site_data
from tasks.config import TaskConfig

__all__ = ["client_name", "local_data"]


def client_name(context: Context) -> str:
    """Return the client's name: `client-name` of its node config, else `partition-id`, else its id.

    Node ids are random and change when a node reconnects, so they are the last resort.
    """
    node = context.node_config
    return str(node.get("client-name") or node.get("partition-id", context.node_id))


def local_data(context: Context, task: TaskConfig) -> ClientData:
    """Return the client's own data: the file `data` of its node config, else its partition.

    Raises
    ------
    ValueError
        If the node config names neither, or the data cannot be used.
    """
    node = context.node_config
    if "data" in node:
        return site_data(str(node["data"]))
    if "partition-id" not in node or "num-partitions" not in node:
        raise ValueError(
            "no data: start the SuperNode with --node-config 'data=\"/path/to/train.npz\"' "
            "or 'partition-id=0 num-partitions=10'"
        )
    return client_data(
        task.dataset,
        task.data_dir,
        task.partitioner,
        int(node["partition-id"]),
        int(node["num-partitions"]),
        shards_per_client=task.shards_per_client,
        alpha=task.alpha,
        seed=task.seed,
    )
