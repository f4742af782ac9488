"""A Flower App that asks whoever is connected for a reply."""

import time

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client = ClientApp()
server = ServerApp()


@client.query()
def answer(message: Message, context: Context) -> Message:
    return Message(RecordDict(), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.1)
    messages = [Message(RecordDict(), node, "query") for node in nodes]
    replies = list(grid.send_and_receive(messages, timeout=60))
    if len(replies) < len(messages) or any(reply.has_error() for reply in replies):
        raise RuntimeError("a client did not answer")
