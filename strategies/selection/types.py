"""What selection maps from and to: `Candidates` in, `Selection` out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Candidates", "FloatArray", "Selection", "Selector"]

FloatArray = NDArray[np.float64] | NDArray[np.float32]


@dataclass(frozen=True)
class Candidates:
    """One row per client that answered the roll call, rows sorted by client name.

    What a strategy did not ask for is NaN (`losses`, `norms`) or has no columns (`sketches`).

    Attributes
    ----------
    round : int
        The current round, from 1.
    names : tuple of K str
        Client names, in natural order (numbers as numbers).
    sketches : array of shape (K, p), float32
        The sketched entries of each client's update, in gradient units.
    layers : tuple of int
        How many of the p entries belong to each layer, in order; sums to p.
    losses : array of shape (K,), float64
        Mean local loss of the global model, before any local step.
    norms : array of shape (K,), float64
        Euclidean norm of the whole update (not of the sketch), in gradient units.
    examples : array of shape (K,), int64
        Local training examples.
    seconds : array of shape (K,), float64
        From sending the client its last message to its reply; NaN if none has been measured.
    ages : array of shape (K,), int64
        Rounds since the client was last selected; the round number if it never was.
    """

    round: int
    names: tuple[str, ...]
    sketches: NDArray[np.float32]
    layers: tuple[int, ...]
    losses: NDArray[np.float64]
    norms: NDArray[np.float64]
    examples: NDArray[np.int64]
    seconds: NDArray[np.float64]
    ages: NDArray[np.int64]

    def __len__(self) -> int:
        """Return K, the number of clients."""
        return len(self.names)


@dataclass(frozen=True)
class Selection:
    """The clients picked.

    Attributes
    ----------
    rows : array of shape (B,), int64
        Rows of `Candidates`, best first. No row twice. Shorter than the budget only for methods
        whose cohort size is random.
    scores : array of shape (K,), float64, or None
        A score per candidate, larger is better. Also ranks the replacements.
    coefficients : array of shape (B,), float64, or None
        If given, the new model is w + sum_i c_i (w_i - w) over the picked clients, instead of the
        aggregator's weighted mean.
    diagnostics : mapping
        JSON-ready facts for `rounds.jsonl`, such as the number of clusters.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float64] | None = None
    coefficients: NDArray[np.float64] | None = None
    diagnostics: Mapping[str, Any] = field(default_factory=dict)


class Selector(Protocol):
    """A pure rule that picks clients: same input, same output.

    `needs` names what the rule reads of the candidates, any of `"sketch"`, `"norm"`, `"loss"` (mean
    over all local training examples) and `"batch-loss"` (over one mini-batch; arrives in `losses`
    too). A rule that needs nothing runs without a roll call.
    """

    @property
    def needs(self) -> frozenset[str]:
        """What is collected from the candidates."""
        ...

    def __call__(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Pick at most `budget` rows of `candidates`."""
        ...
