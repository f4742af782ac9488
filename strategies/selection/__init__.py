"""The mathematics of client selection: sketches in, client rows out."""

from strategies.selection.adcs import adcs_scores, dpp_kernel, select_adcs
from strategies.selection.sckm import sckm_matrix, sckm_scores, select_sckm
from strategies.selection.types import Candidates, Selection, Selector

__all__ = [
    "Candidates",
    "Selection",
    "Selector",
    "adcs_scores",
    "dpp_kernel",
    "sckm_matrix",
    "sckm_scores",
    "select_adcs",
    "select_sckm",
]
