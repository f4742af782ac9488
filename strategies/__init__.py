"""Flower strategies that pick which clients train, from sketches of their updates."""

from strategies.adcs import ADCS
from strategies.afl import AFL
from strategies.cosine_diversity import CosineDiversity
from strategies.divfl import DivFL
from strategies.fedcor import FedCor
from strategies.fedcs import FedCS
from strategies.gpfl import GPFL
from strategies.kmeans_l2 import KMeansL2
from strategies.ocs import OCS
from strategies.oort import Oort
from strategies.power_of_choice import PowerOfChoice
from strategies.record import Feedback, RoundRecord
from strategies.roster import Pool
from strategies.round_robin import RoundRobin
from strategies.sckm_cluster import SCKMCluster
from strategies.sckm_select import SCKMSelect
from strategies.selection.types import Candidates, Selection, Selector
from strategies.sketch import SketchSpec
from strategies.static_dpp import StaticDPP
from strategies.two_phase import TooFewClientsError, TwoPhaseStrategy
from strategies.uniform import Uniform

__all__ = [
    "ADCS",
    "AFL",
    "GPFL",
    "OCS",
    "Candidates",
    "CosineDiversity",
    "DivFL",
    "FedCS",
    "FedCor",
    "Feedback",
    "KMeansL2",
    "Oort",
    "Pool",
    "PowerOfChoice",
    "RoundRecord",
    "RoundRobin",
    "SCKMCluster",
    "SCKMSelect",
    "Selection",
    "Selector",
    "SketchSpec",
    "StaticDPP",
    "TooFewClientsError",
    "TwoPhaseStrategy",
    "Uniform",
]
