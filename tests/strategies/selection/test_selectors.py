"""The selector classes: what they need, pick, and say."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from strategies.selection import (
    ADCSSelector,
    Candidates,
    SCKMClusterSelector,
    SCKMSelector,
    cluster_sckm,
    communication_quality,
    normalise_sketches,
    select_adcs,
    select_sckm,
    select_sckm_cluster,
    weigh_layers,
)


def rng():
    return np.random.default_rng(0)


def candidates(clients=20, entries=15, **changes):
    random = np.random.default_rng(7)
    whole = Candidates(
        round=3,
        names=tuple(map(str, range(clients))),
        sketches=random.standard_normal((clients, entries)).astype(np.float32),
        layers=(entries - 5, 5),
        losses=random.uniform(0, 3, clients),
        norms=random.uniform(0, 9, clients),
        examples=np.full(clients, 10),
        seconds=random.uniform(1, 9, clients),
        ages=random.integers(0, 9, clients),
    )
    return dataclasses.replace(whole, **changes)


SELECTORS = [
    SCKMSelector(),
    SCKMSelector(age_weight=0.3, layer_weighting="layers", normalisation="unit"),
    SCKMClusterSelector(),
    SCKMClusterSelector(
        min_clusters=4, age_weight=0.3, layer_weighting="layers", normalisation="scale"
    ),
    ADCSSelector(),
    ADCSSelector(theta=0.0),
    ADCSSelector(theta=1.0, quality="norm"),
    ADCSSelector(theta=0.6, quality="mixed", gamma=0.3),
]


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
@pytest.mark.parametrize("budget", [1, 6, 20])
def test_the_budget_is_picked_and_scores_rank_the_rest(selector, budget):
    given = candidates()
    selection = selector(given, budget, rng())
    again = selector(given, budget, rng())
    np.testing.assert_array_equal(selection.rows, again.rows)
    np.testing.assert_array_equal(selection.scores, again.scores)
    assert selection.rows.dtype == np.int64
    assert len(set(selection.rows)) == len(selection.rows) == budget
    assert selection.scores.shape == (20,)
    assert np.isfinite(selection.scores).all()
    assert (np.diff(selection.scores[selection.rows]) <= 1e-9).all()
    json.dumps(dict(selection.diagnostics))


def test_sckm_selectors_are_the_functions():
    given = candidates()
    np.testing.assert_array_equal(
        SCKMSelector()(given, 6, rng()).rows, select_sckm(given.sketches, 6, age=given.ages)
    )
    prepared = weigh_layers(normalise_sketches(given.sketches, "unit"), given.layers, "layers")
    options = {"age_weight": 0.3, "layer_weighting": "layers", "normalisation": "unit"}
    np.testing.assert_array_equal(
        SCKMSelector(**options)(given, 6, rng()).rows,
        select_sckm(prepared, 6, age=given.ages, age_weight=0.3),
    )
    selection = SCKMClusterSelector(min_clusters=2, **options)(given, 6, rng())
    np.testing.assert_array_equal(
        selection.rows,
        select_sckm_cluster(prepared, 6, min_clusters=2, rng=rng(), age=given.ages, age_weight=0.3),
    )
    clusters = cluster_sckm(prepared, 6, min_clusters=2, rng=rng())
    assert selection.diagnostics == {"clusters": len(clusters.medoids)}


def test_a_budget_below_min_clusters_lowers_it():
    assert SCKMClusterSelector(min_clusters=9)(candidates(), 3, rng()).diagnostics == {
        "clusters": 3
    }


@pytest.mark.parametrize("quality", ["loss", "norm", "mixed"])
def test_adcs_reads_the_quality_asked_for(quality):
    given = candidates()
    speed = communication_quality(given.seconds)
    expected = {
        "loss": given.losses,
        "norm": given.norms,
        "mixed": 0.7 * given.losses + 0.3 * speed,
    }[quality]
    np.testing.assert_array_equal(
        ADCSSelector(theta=0.7, quality=quality, gamma=0.3)(given, 6, rng()).rows,
        select_adcs(given.sketches, expected, 0.7, 6, age=given.ages),
    )


def test_gamma_zero_is_the_loss_and_gamma_one_the_speed():
    given = candidates(seconds=np.linspace(9, 1, 20))
    np.testing.assert_array_equal(
        ADCSSelector(quality="mixed", gamma=0.0)(given, 6, rng()).rows,
        ADCSSelector(quality="loss")(given, 6, rng()).rows,
    )
    np.testing.assert_array_equal(
        ADCSSelector(theta=1.0, quality="mixed", gamma=1.0)(given, 3, rng()).rows, [19, 18, 17]
    )


def test_faster_clients_have_the_larger_communication_quality():
    quality = communication_quality(np.array([1.0, 2.0, np.nan, 4.0]))
    np.testing.assert_allclose(quality, [2 / 3, 1 / 2, 1 / 2, 1 / 3])
    np.testing.assert_allclose(communication_quality(np.array([60.0, 120.0]))[0], 0.6)


@pytest.mark.parametrize("seconds", [np.full(3, np.nan), np.zeros(3)])
def test_communication_quality_without_differences_is_equal(seconds):
    quality = communication_quality(seconds)
    assert ((quality >= 0) & (quality <= 1)).all()
    assert len(set(quality)) == 1


def test_needs():
    assert SCKMSelector().needs == {"sketch"}
    assert SCKMClusterSelector().needs == {"sketch"}
    assert ADCSSelector().needs == {"sketch", "loss"}
    assert ADCSSelector(quality="norm").needs == {"sketch", "norm"}
    assert ADCSSelector(quality="mixed").needs == {"sketch", "loss"}


def test_a_missing_loss_is_an_error_that_says_so():
    losses = np.ones(20)
    losses[4] = np.nan
    with pytest.raises(ValueError, match="quality: row 4 is nan"):
        ADCSSelector()(candidates(losses=losses), 3, rng())


@pytest.mark.parametrize(
    ("selector", "options", "error", "message"),
    [
        (SCKMSelector, {"age_weight": -1.0}, ValueError, "age_weight"),
        (SCKMSelector, {"age_weight": "1"}, TypeError, "age_weight"),
        (SCKMSelector, {"layer_weighting": "size"}, ValueError, "layer_weighting"),
        (SCKMSelector, {"normalisation": "l1"}, ValueError, "normalisation"),
        (SCKMClusterSelector, {"min_clusters": 0}, ValueError, "min_clusters"),
        (SCKMClusterSelector, {"backend": "pam"}, ValueError, "backend"),
        (ADCSSelector, {"theta": 1.5}, ValueError, "theta"),
        (ADCSSelector, {"gamma": -0.1}, ValueError, "gamma"),
        (ADCSSelector, {"quality": "speed"}, ValueError, "quality"),
    ],
)
def test_bad_options_are_named(selector, options, error, message):
    with pytest.raises(error, match=message):
        selector(**options)
