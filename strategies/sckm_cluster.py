"""SCKM-Cluster: SCKM-Select inside clusters of like clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import numpy as np

from strategies.options import Options
from strategies.selection.kmedoids import Backend
from strategies.selection.preparation import LayerWeighting, Normalisation
from strategies.selection.selectors import SCKMClusterSelector
from strategies.selection.types import Candidates, Selection
from strategies.two_phase import TwoPhaseStrategy

__all__ = ["SCKMCluster"]


class SCKMCluster(TwoPhaseStrategy):
    """Clusters by co-skewness and picks inside each cluster (SCKM paper, Algorithm 2).

    Each line of `rounds.jsonl` has the round's number of clusters (`clusters`) and the floor of its
    mean over the rounds so far (`mean-clusters`, Eq. 10). Departures: see `select_sckm_cluster`.

    Parameters
    ----------
    min_clusters : int
        C_min of Algorithm 2.
    backend : "onebatch" or "sklearn-extra"
        The library that finds the medoids.
    age_weight, layer_weighting, normalisation
        As for `SCKMSelect`.
    **options
        As for `TwoPhaseStrategy`.
    """

    def __init__(
        self,
        *,
        min_clusters: int = 1,
        backend: Backend = "onebatch",
        age_weight: float = 0.0,
        layer_weighting: LayerWeighting = "entries",
        normalisation: Normalisation = "none",
        **options: Unpack[Options],
    ) -> None:
        selector = SCKMClusterSelector(
            min_clusters, backend, age_weight, layer_weighting, normalisation
        )
        super().__init__(selector, **options)
        self.state = {"rounds": 0, "clusters": 0}

    def select(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Cluster, pick, and keep count of the clusters."""
        selection = super().select(candidates, budget, rng)
        rounds = self.state["rounds"] + 1
        clusters = self.state["clusters"] + selection.diagnostics["clusters"]
        self.state = {"rounds": rounds, "clusters": clusters}
        mean = {"mean-clusters": clusters // rounds}
        return replace(selection, diagnostics={**selection.diagnostics, **mean})
