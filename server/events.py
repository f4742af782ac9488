"""TensorBoard event files, so that a long run can be watched; needs the extra `tensorboard`."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from strategies import RoundRecord

__all__ = ["event_files"]

# Rounds may last a millisecond: of those without an evaluation, one a second is enough to watch.
_PAUSE = 1.0


@contextmanager
def event_files(folder: Path) -> Iterator[Callable[[RoundRecord], None]]:
    """Yield a function that writes a round's numbers to `folder`.

    It does nothing where TensorBoard is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        yield lambda record: None
        return
    # torch's writer does the same, but would have the server import torch.
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    last = -_PAUSE
    writer = EventFileWriter(str(folder))

    def write(record: RoundRecord) -> None:
        nonlocal last
        now = time.monotonic()
        if "accuracy" not in record.metrics and now < last + _PAUSE:
            return
        last = now
        numbers = {k: v for k, v in record.metrics.items() if isinstance(v, int | float)}
        numbers["bytes/down"] = sum(record.bytes_down.values())
        numbers["bytes/up"] = sum(record.bytes_up.values())
        numbers["clients/picked"] = len(record.selected)
        numbers["clients/failed"] = len(record.failed)
        values = [Summary.Value(tag=name, simple_value=v) for name, v in numbers.items()]
        summary = Summary(value=values)
        writer.add_event(Event(wall_time=time.time(), step=record.round, summary=summary))

    with closing(writer):
        yield write
