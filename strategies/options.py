"""The options that every two-phase strategy has, as keyword arguments to pass on."""

from __future__ import annotations

from typing import Literal, Required, TypedDict

from flwr.serverapp.strategy import Strategy

from strategies.sketch import SketchSpec

__all__ = ["Options"]


class Options(TypedDict, total=False):
    """Keyword arguments of `TwoPhaseStrategy`, where they are documented."""

    clients_per_round: Required[int]
    seed: int
    aggregator: Strategy | None
    sketch: SketchSpec | None
    sketch_of: Literal["update", "gradient"]
    candidate_fraction: float
    reuse_update: bool
    weighting: Literal["examples", "uniform"]
    replacements: int
    quorum: float
    deadline: float
    grace: float
    max_norm_ratio: float
    min_clients: int
    wait: float
