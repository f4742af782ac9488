"""Normalisation and the weighting of layers."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.selection import normalise_sketches, sckm_matrix, weigh_layers


def problem(seed, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal((12, 10)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_unit_makes_every_client_unit_length(dtype):
    sketches = problem(0, dtype)
    sketches[3] = 0
    sketches[4] *= 1e30
    sketches[5] *= 1e-30
    before = sketches.copy()
    unit = normalise_sketches(sketches, "unit")
    np.testing.assert_array_equal(sketches, before)
    assert unit.dtype == dtype
    lengths = np.linalg.norm(unit.astype(np.float64), axis=1)
    np.testing.assert_allclose(np.delete(lengths, 3), 1, rtol=1e-6)
    np.testing.assert_array_equal(unit[3], 0)
    np.testing.assert_allclose(unit[0] * np.linalg.norm(before[0]), before[0], rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scale_makes_every_coordinate_of_equal_power(dtype):
    sketches = problem(1, dtype) * np.logspace(-20, 20, 10).astype(dtype)
    sketches[:, 7] = 0
    scaled = normalise_sketches(sketches, "scale")
    assert scaled.dtype == dtype
    power = np.sqrt(np.square(scaled, dtype=np.float64).mean(axis=0))
    np.testing.assert_allclose(np.delete(power, 7), 1, rtol=1e-6)
    np.testing.assert_array_equal(scaled[:, 7], 0)


def test_none_and_entries_return_the_array_itself():
    sketches = problem(2)
    assert normalise_sketches(sketches, "none") is sketches
    assert weigh_layers(sketches, [4, 6], "entries") is sketches


@pytest.mark.parametrize("layers", [(4, 6), (1, 8, 1), (10,), (0, 3, 0, 7)])
def test_layers_count_equally_whatever_their_size(layers):
    sketches = problem(3)
    stops = np.cumsum(layers)
    parts = [
        sckm_matrix(sketches[:, stop - size : stop])
        for stop, size in zip(stops, layers, strict=True)
        if size
    ]
    np.testing.assert_allclose(
        sckm_matrix(weigh_layers(sketches, layers, "layers")), np.mean(parts, axis=0), atol=1e-12
    )


def test_float32_layers_stay_float32():
    weighed = weigh_layers(problem(4, np.float32), [4, 6], "layers")
    assert weighed.dtype == np.float32


@pytest.mark.parametrize("layers", [(4, 5), (11, -1), ((4, 6),)])
def test_layers_that_do_not_fit_are_an_error(layers):
    with pytest.raises(ValueError, match="layers"):
        weigh_layers(problem(5), layers, "layers")


def test_unknown_options_are_named():
    with pytest.raises(ValueError, match="normalisation: got 'l1'"):
        normalise_sketches(problem(6), "l1")
    with pytest.raises(ValueError, match="layer_weighting: got 'size'"):
        weigh_layers(problem(6), [10], "size")


@pytest.mark.parametrize("normalisation", ["unit", "scale"])
def test_a_bad_entry_is_named_by_its_row(normalisation):
    sketches = problem(7)
    sketches[8, 2] = np.inf
    with pytest.raises(ValueError, match="row 8"):
        normalise_sketches(sketches, normalisation)
