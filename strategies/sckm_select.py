"""SCKM-Select: the clients whose updates differ most from everyone's."""

from __future__ import annotations

from typing import Unpack

from strategies.options import Options
from strategies.selection.preparation import LayerWeighting, Normalisation
from strategies.selection.selectors import SCKMSelector
from strategies.two_phase import TwoPhaseStrategy

__all__ = ["SCKMSelect"]


class SCKMSelect(TwoPhaseStrategy):
    """Picks the clients with the largest average co-skewness (SCKM paper, Algorithm 1, Eq. 9).

    Departures: scores are computed in O(K p), without the pairs (see `sckm_scores`). With
    `age_weight` above 0, waiting counts too; that is this project's, not the paper's.

    Parameters
    ----------
    age_weight : float
        Weight of the rounds waited; 0 is the paper's rule, with age only breaking ties.
    layer_weighting : "entries" or "layers"
        Whether layers count by their entries (Eq. 8 on the concatenation) or equally.
    normalisation : "none", "unit" or "scale"
        Of the sketches before scoring; the paper has none.
    **options
        As for `TwoPhaseStrategy`.
    """

    def __init__(
        self,
        *,
        age_weight: float = 0.0,
        layer_weighting: LayerWeighting = "entries",
        normalisation: Normalisation = "none",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(SCKMSelector(age_weight, layer_weighting, normalisation), **options)
