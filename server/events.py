"""TensorBoard event files, so that a long run can be watched; needs the extra `tensorboard`."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    from torch.utils.tensorboard import SummaryWriter

    last = -_PAUSE
    with SummaryWriter(str(folder)) as writer:

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
            for name, value in numbers.items():
                writer.add_scalar(name, value, record.round)

        yield write
