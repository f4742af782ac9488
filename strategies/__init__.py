"""Flower strategies that pick which clients train, from sketches of their updates."""

from strategies.adcs import ADCS
from strategies.record import Feedback, RoundRecord
from strategies.roster import Pool
from strategies.round_robin import RoundRobin
from strategies.sckm_cluster import SCKMCluster
from strategies.sckm_select import SCKMSelect
from strategies.selection.types import Candidates, Selection, Selector
from strategies.sketch import SketchSpec
from strategies.two_phase import TooFewClientsError, TwoPhaseStrategy
from strategies.uniform import Uniform

__all__ = [
    "ADCS",
    "Candidates",
    "Feedback",
    "Pool",
    "RoundRecord",
    "RoundRobin",
    "SCKMCluster",
    "SCKMSelect",
    "Selection",
    "Selector",
    "SketchSpec",
    "TooFewClientsError",
    "TwoPhaseStrategy",
    "Uniform",
]
