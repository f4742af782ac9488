"""The mathematics of client selection: sketches in, client rows out."""

from strategies.selection.adcs import adcs_scores, dpp_kernel, select_adcs
from strategies.selection.cluster import (
    Clustering,
    apportion,
    cluster_sckm,
    elbow,
    select_sckm_cluster,
)
from strategies.selection.preparation import normalise_sketches, weigh_layers
from strategies.selection.sckm import sckm_matrix, sckm_scores, select_sckm
from strategies.selection.selectors import (
    ADCSSelector,
    SCKMClusterSelector,
    SCKMSelector,
    communication_quality,
)
from strategies.selection.types import Candidates, Selection, Selector

__all__ = [
    "ADCSSelector",
    "Candidates",
    "Clustering",
    "SCKMClusterSelector",
    "SCKMSelector",
    "Selection",
    "Selector",
    "adcs_scores",
    "apportion",
    "cluster_sckm",
    "communication_quality",
    "dpp_kernel",
    "elbow",
    "normalise_sketches",
    "sckm_matrix",
    "sckm_scores",
    "select_adcs",
    "select_sckm",
    "select_sckm_cluster",
    "weigh_layers",
]
