"""What is written down of a round, and what a strategy learns from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.messages import Arrays
from strategies.selection.types import Candidates

__all__ = ["Feedback", "RoundRecord"]


@dataclass
class RoundRecord:
    """One line of `rounds.jsonl`; clients are named, never numbered by node.

    `bytes_down`, `bytes_up` and `seconds` are per phase: `query`, `sketch`, `train`, `evaluate`.
    `skipped` says why a round left the model as it was; it is absent from the line otherwise.
    """

    round: int
    eligible: list[str] = field(default_factory=list)
    sketched: list[str] = field(default_factory=list)
    selected: list[str] = field(default_factory=list)
    replied: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    bytes_down: dict[str, int] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    diagnostics: dict[str, Any] = field(default_factory=dict)
    skipped: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the line's keys and values, ready for `json.dumps`."""
        line: dict[str, Any] = {
            "round": self.round,
            "eligible": self.eligible,
            "sketched": self.sketched,
            "selected": self.selected,
            "replied": self.replied,
            "failed": self.failed,
            "scores": self.scores,
            "bytes-down": self.bytes_down,
            "bytes-up": self.bytes_up,
            "seconds": {phase: round(took, 6) for phase, took in self.seconds.items()},
            "metrics": self.metrics,
            **self.diagnostics,
        }
        if self.skipped is not None:
            line["skipped"] = self.skipped
        return line


@dataclass(frozen=True)
class Feedback:
    """What a finished round tells a strategy; the arrays have one row per client in `names`.

    Attributes
    ----------
    round : int
        The round.
    names : tuple of R str
        Clients whose updates were aggregated, sorted by name.
    losses : array of shape (R,), float64
        Mean loss of the round's global model on the client's training data, before training.
        NaN unless the strategy asked for it.
    loss_rms : array of shape (R,), float64
        Root of the mean squared loss per example, likewise.
    examples : array of shape (R,), int64
        Local training examples.
    seconds : array of shape (R,), float64
        From sending the training message to its reply.
    updates : sequence of R mappings of str to array
        Each client's update per array, w_t - w_local (decoded only when read).
    global_update : mapping of str to array
        w_t - w_(t+1).
    accuracy, loss : float or None
        Central evaluation after the round, where there was one.
    candidates : Candidates or None
        Who answered the roll call; None if there was none.
    """

    round: int
    names: tuple[str, ...]
    losses: NDArray[np.float64]
    loss_rms: NDArray[np.float64]
    examples: NDArray[np.int64]
    seconds: NDArray[np.float64]
    updates: Sequence[Arrays]
    global_update: Arrays
    accuracy: float | None
    loss: float | None
    candidates: Candidates | None
