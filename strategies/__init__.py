"""Flower strategies that pick which clients train, from sketches of their updates."""

from strategies.record import Feedback, RoundRecord
from strategies.roster import Pool
from strategies.round_robin import RoundRobin
from strategies.selection.types import Candidates, Selection, Selector
from strategies.sketch import SketchSpec
from strategies.two_phase import TooFewClientsError, TwoPhaseStrategy
from strategies.uniform import Uniform

__all__ = [
    "Candidates",
    "Feedback",
    "Pool",
    "RoundRecord",
    "RoundRobin",
    "Selection",
    "Selector",
    "SketchSpec",
    "TooFewClientsError",
    "TwoPhaseStrategy",
    "Uniform",
]
