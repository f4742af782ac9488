"""Selectors of the methods that the two papers compare with, and of two used in deployments.

Plain functions on arrays, one module per method. What a method remembers between rounds is passed
in, never kept.
"""

from strategies.selection.baselines.afl import afl_valuations, select_afl
from strategies.selection.baselines.cosine_diversity import select_cosine_diversity
from strategies.selection.baselines.divfl import select_divfl
from strategies.selection.baselines.fedcor import fit_fedcor, select_fedcor
from strategies.selection.baselines.fedcs import select_fedcs
from strategies.selection.baselines.gpfl import (
    gpfl_projections,
    gpfl_rewards,
    gpfl_scores,
    select_gpfl,
)
from strategies.selection.baselines.kmeans_l2 import select_kmeans_l2
from strategies.selection.baselines.ocs import ocs_probabilities, sample_ocs, select_ocs
from strategies.selection.baselines.oort import (
    oort_exploration,
    oort_pacer,
    oort_rewards,
    oort_scores,
    select_oort,
)
from strategies.selection.baselines.power_of_choice import draw_candidates, select_power_of_choice
from strategies.selection.baselines.round_robin import select_round_robin
from strategies.selection.baselines.sampling import draw_without_replacement, largest
from strategies.selection.baselines.uniform import select_uniform

__all__ = [
    "afl_valuations",
    "draw_candidates",
    "draw_without_replacement",
    "fit_fedcor",
    "gpfl_projections",
    "gpfl_rewards",
    "gpfl_scores",
    "largest",
    "ocs_probabilities",
    "oort_exploration",
    "oort_pacer",
    "oort_rewards",
    "oort_scores",
    "sample_ocs",
    "select_afl",
    "select_cosine_diversity",
    "select_divfl",
    "select_fedcor",
    "select_fedcs",
    "select_gpfl",
    "select_kmeans_l2",
    "select_ocs",
    "select_oort",
    "select_power_of_choice",
    "select_round_robin",
    "select_uniform",
]
