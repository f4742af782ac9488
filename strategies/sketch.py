"""The sketch: which few numbers stand for a client's update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from strategies.randomness import derive_key

__all__ = ["SketchKind", "SketchSpec"]

SketchKind = Literal["subsample", "projection"]


@dataclass(frozen=True)
class SketchSpec:
    """What every client sends of its update in phase 1.

    Both ends compute the same coordinates from the same spec, so none travels. The draw uses raw
    64-bit output of Philox only, which NumPy keeps stable between versions.

    Attributes
    ----------
    ratio : float
        Share of the entries, in (0, 1]; 0.005 in the SCKM paper (Section 6.1). Each layer sends
        max(1, round(ratio x size)) entries.
    kind : "subsample" or "projection"
        `"subsample"` sends entries as they are. `"projection"` adds all entries, with random signs,
        into as many buckets (a count sketch): inner products and norms survive in expectation, so
        it suits ADCS; third moments do not (a random sign cubed averages to zero), so it does not
        suit SCKM.
    layers : tuple of str
        Names or shell patterns of the arrays to sketch; empty for all.
    seed : int
        Seed of the coordinates.
    """

    ratio: float = 0.005
    kind: SketchKind = "subsample"
    layers: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every field.

        Raises
        ------
        ValueError
            If the ratio is outside (0, 1] or the kind is unknown.
        """
        if not 0 < self.ratio <= 1:
            raise ValueError(f"sketch ratio = {self.ratio}: allowed are numbers in (0, 1]")
        if self.kind not in get_args(SketchKind):
            raise ValueError(
                f"sketch kind = {self.kind!r}: allowed are {', '.join(get_args(SketchKind))}"
            )

    def sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Return how many entries each sketched layer sends, in the order they are sent.

        Layers go by name, so that both ends agree whatever order their arrays come in.

        Raises
        ------
        ValueError
            If a pattern in `layers` matches no array, or nothing is left to sketch.
        """
        for pattern in self.layers:
            if not any(fnmatchcase(name, pattern) for name in shapes):
                raise ValueError(
                    f"sketch layer {pattern!r} matches no array; there are {', '.join(shapes)}"
                )
        sizes = {}
        for name in sorted(shapes):
            entries = math.prod(shapes[name])
            wanted = not self.layers or any(fnmatchcase(name, p) for p in self.layers)
            if wanted and entries:
                sizes[name] = max(1, round(self.ratio * entries))
        if not sizes:
            raise ValueError("nothing to sketch: the model has no arrays with entries")
        return sizes

    def indices(
        self, server_round: int, shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, NDArray[np.int64]]:
        """Return the coordinates that every client sends in this round.

        Sampling is stratified: entry i of p is uniform over the i-th of p equal slices of the
        flattened layer, so none repeats and the work is O(p). Where p does not divide the layer's
        size the slices differ by one; the whole pattern is then rotated by a uniform offset, which
        keeps every coordinate exactly equally likely.

        Parameters
        ----------
        server_round : int
            The round; each has coordinates of its own.
        shapes : mapping of str to shape
            The model's floating-point arrays.

        Returns
        -------
        dict of str to array of shape (p_layer,), int64
            Flat positions in each sketched layer. For a projection it is one bucket for each of the
            layer's entries, shape (size,), with the sign in the lowest bit: 2 x bucket + (0 or 1).
        """
        result = {}
        for name, count in self.sizes(shapes).items():
            size = math.prod(shapes[name])
            bits = np.random.Philox(key=derive_key(self.seed, server_round, name, self.kind))
            if self.kind == "projection":
                draws = _raw(bits, size)
                buckets = (draws >> np.uint64(1)) % np.uint64(count)
                result[name] = (2 * buckets + (draws & np.uint64(1))).astype(np.int64)
                continue
            if count == size:  # what the draws below come to, without drawing
                result[name] = np.arange(size)
                continue
            edges = np.arange(count + 1, dtype=np.int64) * size // count
            draws = _raw(bits, count + 1)
            # The remainder's bias is below size / 2^64.
            within = (draws[:count] % np.diff(edges).astype(np.uint64)).astype(np.int64)
            offset = int(draws[count] % np.uint64(size)) if size % count else 0
            result[name] = (edges[:-1] + within + offset) % size
        return result

    def apply(self, server_round: int, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the sketch of an update.

        Parameters
        ----------
        server_round : int
            The round.
        arrays : mapping of str to floating-point array
            The update, one array per layer.

        Returns
        -------
        array of shape (p,), float32
            The layers' entries one after another, in the order of `sizes`.
        """
        shapes = {name: array.shape for name, array in arrays.items()}
        coordinates = self.indices(server_round, shapes)
        parts: list[NDArray[Any]]
        if self.kind == "subsample":
            parts = [arrays[name].reshape(-1)[where] for name, where in coordinates.items()]
        else:
            counts = self.sizes(shapes)
            parts = [
                np.bincount(
                    where >> 1,
                    weights=arrays[name].reshape(-1) * (1.0 - 2.0 * (where & 1)),
                    minlength=counts[name],
                )
                for name, where in coordinates.items()
            ]
        return np.concatenate(parts).astype(np.float32)


def _raw(bits: np.random.Philox, count: int) -> NDArray[np.uint64]:
    return cast("NDArray[np.uint64]", np.asarray(bits.random_raw(count)))
