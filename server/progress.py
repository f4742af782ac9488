"""One readable line a round."""

from __future__ import annotations

from strategies import RoundRecord

__all__ = ["byte_text", "progress_line"]


def byte_text(count: float) -> str:
    """Return a number of bytes in the unit that keeps it short, such as `12.3 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def progress_line(record: RoundRecord, rounds: int) -> str:
    """Return what happened in a round: sketched, picked, accuracy, bytes, seconds, failures."""
    metrics = record.metrics
    parts = [f"round {record.round:>{len(str(rounds))}}/{rounds}"]
    if record.sketched:
        parts.append(f"sketched {len(record.sketched)}")
    if record.skipped:
        parts.append(f"skipped: {record.skipped}")
    else:
        parts.append("picked " + _names(record.selected))
    if "accuracy" in metrics:
        accuracy = f"accuracy {metrics['accuracy']:.3f}"
        parts += [accuracy, f"worst client {metrics['worst-accuracy']:.3f}"]
    elif "train-loss" in metrics:
        parts.append(f"train loss {metrics['train-loss']:.3f}")
    parts.append(f"down {byte_text(sum(record.bytes_down.values()))}")
    parts.append(f"up {byte_text(sum(record.bytes_up.values()))}")
    parts.append(f"{sum(record.seconds.values()):.2f} s")
    line = " | ".join(parts)
    for name, reason in record.failed.items():
        line += f"\n      {name} failed: {reason}"
    return line


def _names(names: list[str], most: int = 12) -> str:
    """Return the names, or as many as fit on a line."""
    shown = " ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
