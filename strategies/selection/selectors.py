"""The two papers' methods as selectors: `Candidates` in, `Selection` out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from strategies.selection._validation import as_age, as_budget, as_count, as_fraction, as_weight
from strategies.selection.adcs import adcs_scores
from strategies.selection.cluster import cluster_sckm, pick_from_clusters
from strategies.selection.kmedoids import Backend, check_backend
from strategies.selection.preparation import (
    LayerWeighting,
    Normalisation,
    check_layer_weighting,
    check_normalisation,
    normalise_sketches,
    weigh_layers,
)
from strategies.selection.sckm import rank_by_age, sckm_scores, top_rows
from strategies.selection.types import Candidates, FloatArray, Selection

__all__ = [
    "ADCSSelector",
    "Quality",
    "SCKMClusterSelector",
    "SCKMSelector",
    "communication_quality",
]

Quality = Literal["loss", "norm", "mixed"]


@dataclass(frozen=True)
class SCKMSelector:
    """SCKM-Select, Algorithm 1 of the SCKM paper; see `select_sckm`.

    Attributes
    ----------
    age_weight : float
        0 is the paper's rule; see `rank_by_age`.
    layer_weighting : "entries" or "layers"
        How layers combine; see `weigh_layers`. "entries" is Eq. 8 on the concatenation.
    normalisation : "none", "unit" or "scale"
        See `normalise_sketches`. "none" is the paper's.
    """

    age_weight: float = 0.0
    layer_weighting: LayerWeighting = "entries"
    normalisation: Normalisation = "none"

    def __post_init__(self) -> None:
        """Raise `ValueError` or `TypeError` for an option that is not allowed."""
        _check_sckm(self)

    @property
    def needs(self) -> frozenset[str]:
        """What is collected from the candidates."""
        return frozenset({"sketch"})

    def __call__(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Pick `budget` rows; `rng` is not used."""
        clients = len(candidates)
        budget = as_budget(budget, clients)
        ages = as_age(candidates.ages, clients)
        scores = sckm_scores(_prepared(self, candidates))
        if self.age_weight > 0.0:
            scores = rank_by_age(scores, ages, clients / budget, age_weight=self.age_weight)
        return Selection(rows=top_rows(scores, ages, budget), scores=scores)


@dataclass(frozen=True)
class SCKMClusterSelector:
    """SCKM-Cluster, Algorithm 2 of the SCKM paper; see `select_sckm_cluster`.

    The diagnostics hold `clusters`, the number of clusters of the round.

    Attributes
    ----------
    min_clusters : int
        The smallest number of clusters; a smaller budget lowers it.
    backend : "onebatch" or "sklearn-extra"
        The k-medoids library.
    age_weight, layer_weighting, normalisation
        As for `SCKMSelector`.
    """

    min_clusters: int = 1
    backend: Backend = "onebatch"
    age_weight: float = 0.0
    layer_weighting: LayerWeighting = "entries"
    normalisation: Normalisation = "none"

    def __post_init__(self) -> None:
        """Raise `ValueError` or `TypeError` for an option that is not allowed."""
        as_count(self.min_clusters, "min_clusters")
        check_backend(self.backend)
        _check_sckm(self)

    @property
    def needs(self) -> frozenset[str]:
        """What is collected from the candidates."""
        return frozenset({"sketch"})

    def __call__(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Pick `budget` rows; `rng` draws the samples of a large pool."""
        ages = as_age(candidates.ages, len(candidates))
        sketches = _prepared(self, candidates)
        clustering = cluster_sckm(
            sketches,
            budget,
            min_clusters=min(self.min_clusters, budget),
            rng=rng,
            backend=self.backend,
        )
        rows, scores = pick_from_clusters(
            sketches, clustering.labels, budget, ages, age_weight=self.age_weight
        )
        return Selection(
            rows=rows, scores=scores, diagnostics={"clusters": len(clustering.medoids)}
        )


@dataclass(frozen=True)
class ADCSSelector:
    """ADCS, Eqs. 5 to 9 of the ADCS paper; see `select_adcs` and `adcs_scores`.

    Attributes
    ----------
    theta : float
        Weight of quality against diversity, in [0, 1].
    quality : "loss", "norm" or "mixed"
        The client's loss, the norm of its update, or (1 - gamma) x loss + gamma x
        `communication_quality` (Section 4.1).
    gamma : float
        Weight of communication in "mixed", in [0, 1]; not used otherwise.
    """

    theta: float = 0.8
    quality: Quality = "loss"
    gamma: float = 0.5

    def __post_init__(self) -> None:
        """Raise `ValueError` or `TypeError` for an option that is not allowed."""
        as_fraction(self.theta, "theta")
        as_fraction(self.gamma, "gamma")
        if self.quality not in get_args(Quality):
            raise ValueError(f"quality: got {self.quality!r}, must be loss, norm or mixed")

    @property
    def needs(self) -> frozenset[str]:
        """What is collected from the candidates."""
        return frozenset({"sketch", "norm" if self.quality == "norm" else "loss"})

    def __call__(self, candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        """Pick `budget` rows; `rng` is not used."""
        rows, scores = adcs_scores(
            candidates.sketches,
            self._quality(candidates),
            self.theta,
            budget,
            age=candidates.ages,
        )
        return Selection(rows=rows, scores=scores)

    def _quality(self, candidates: Candidates) -> NDArray[np.float64]:
        if self.quality == "loss":
            return candidates.losses
        if self.quality == "norm":
            return candidates.norms
        speed = communication_quality(candidates.seconds)
        return (1.0 - self.gamma) * candidates.losses + self.gamma * speed


def communication_quality(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a quality in [0, 1] that is larger for clients that reply faster.

    The ADCS paper names such a quality and leaves its form open. Here it is
    median / (median + seconds): one half for the median client, whatever the unit, and neither one
    very fast nor one very slow client moves the others. A client without a measured time counts as
    the median.

    Parameters
    ----------
    seconds : array of shape (K,), float64
        Measured reply times, NaN where there is none.

    Returns
    -------
    array of shape (K,), float64
    """
    measured = ~np.isnan(seconds)
    median = float(np.median(seconds[measured])) if measured.any() else 1.0
    if median <= 0.0:
        median = 1.0
    return median / (median + np.where(measured, seconds, median))


def _check_sckm(selector: SCKMSelector | SCKMClusterSelector) -> None:
    as_weight(selector.age_weight, "age_weight")
    check_layer_weighting(selector.layer_weighting)
    check_normalisation(selector.normalisation)


def _prepared(selector: SCKMSelector | SCKMClusterSelector, candidates: Candidates) -> FloatArray:
    sketches = normalise_sketches(candidates.sketches, selector.normalisation)
    return weigh_layers(sketches, candidates.layers, selector.layer_weighting)
