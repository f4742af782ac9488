"""A Flower App without a model: the server asks every client for its partition id."""

import time

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client = ClientApp()
server = ServerApp()


@client.query()
def partition(message: Message, context: Context) -> Message:
    answer = {"partition": context.node_config["partition-id"]}
    return Message(RecordDict({"answer": ConfigRecord(answer)}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    print("text:", context.run_config["text"])
    if context.run_config["mode"] == "raise":
        raise ValueError("seed: -1 is not allowed")
    if context.run_config["mode"] == "sleep":
        time.sleep(600)
    while len(nodes := list(grid.get_node_ids())) < 3:
        time.sleep(0.05)
    messages = [Message(RecordDict(), node, "query") for node in nodes]
    replies = grid.send_and_receive(messages, timeout=120)
    print("partitions:", sorted(int(reply.content["answer"]["partition"]) for reply in replies))
