"""What may be done to sketches before SCKM: normalisation, and weighing the layers equally."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from strategies.selection._validation import as_sketches, reject_non_finite
from strategies.selection.types import FloatArray

__all__ = [
    "LayerWeighting",
    "Normalisation",
    "check_layer_weighting",
    "check_normalisation",
    "normalise_sketches",
    "weigh_layers",
]

Normalisation = Literal["none", "unit", "scale"]
LayerWeighting = Literal["entries", "layers"]


def check_normalisation(value: str) -> None:
    """Raise `ValueError` unless `value` is a `Normalisation`."""
    if value not in get_args(Normalisation):
        raise ValueError(f"normalisation: got {value!r}, must be none, unit or scale")


def check_layer_weighting(value: str) -> None:
    """Raise `ValueError` unless `value` is a `LayerWeighting`."""
    if value not in get_args(LayerWeighting):
        raise ValueError(f"layer_weighting: got {value!r}, must be entries or layers")


def normalise_sketches(sketches: ArrayLike, normalisation: Normalisation = "none") -> FloatArray:
    """Return the sketches normalised per client or per coordinate.

    Parameters
    ----------
    sketches : array of shape (K, p), float32 or float64
        One row per client.
    normalisation : "none", "unit" or "scale"
        "none" is the SCKM paper's choice and returns the array itself. "unit" divides each row by
        its Euclidean norm. "scale" divides each column by its root mean square over the clients:
        the second moment about zero, because Eq. 8 is made of moments about zero. What is all zero
        stays so.

    Returns
    -------
    array of shape (K, p), same dtype as the input

    Raises
    ------
    ValueError, TypeError
        If an argument is not as described.
    """
    sketches = as_sketches(sketches)
    check_normalisation(normalisation)
    if normalisation == "none":
        return sketches
    reject_non_finite(sketches)
    axis = 1 if normalisation == "unit" else 0
    # Dividing by the peak first keeps the squares from overflowing and underflowing.
    peak = np.abs(sketches).max(axis=axis, keepdims=True)
    peak[peak == 0] = 1
    scaled: FloatArray = sketches / peak
    power = np.square(scaled).sum(axis=axis, dtype=np.float64, keepdims=True)
    size = np.sqrt(power if normalisation == "unit" else power / len(sketches))
    size[size == 0] = 1
    scaled /= size.astype(scaled.dtype)
    return scaled


def weigh_layers(
    sketches: ArrayLike, layers: Sequence[int], layer_weighting: LayerWeighting = "entries"
) -> FloatArray:
    """Return sketches whose Eq. 8 combines the layers as asked.

    SCKM is a sum over entries of products of degree three, so weighting entry i by w_i is the same
    as multiplying it by the cube root of w_i beforehand; every function that takes sketches then
    works unchanged.

    Parameters
    ----------
    sketches : array of shape (K, p), float32 or float64
        One row per client.
    layers : sequence of int
        How many of the p entries belong to each layer, in order. Layers without entries do not
        count.
    layer_weighting : "entries" or "layers"
        "entries" is Eq. 8 on the concatenation and returns the array itself. "layers" makes Eq. 8
        the plain mean of the layers' own SCKM.

    Returns
    -------
    array of shape (K, p), same dtype as the input

    Raises
    ------
    ValueError, TypeError
        If an argument is not as described.
    """
    sketches = as_sketches(sketches)
    check_layer_weighting(layer_weighting)
    sizes = np.asarray(layers, dtype=np.int64)
    if sizes.ndim != 1 or (sizes < 0).any() or sizes.sum() != sketches.shape[1]:
        raise ValueError(
            f"layers: got {list(layers)}, must sum to the {sketches.shape[1]} entries of a sketch"
        )
    if layer_weighting == "entries":
        return sketches
    sizes = sizes[sizes > 0]
    weights = np.repeat(sketches.shape[1] / (len(sizes) * sizes), sizes)
    weighed: FloatArray = sketches * np.cbrt(weights).astype(sketches.dtype)
    return weighed
