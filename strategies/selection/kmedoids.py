"""k-medoids by a library, the only place that knows which."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

__all__ = ["Backend", "check_backend", "improve_medoids"]

Backend = Literal["onebatch", "sklearn-extra"]

_MAX_PASSES = 100


def check_backend(value: str) -> None:
    """Raise `ValueError` unless `value` is a `Backend`."""
    if value not in get_args(Backend):
        raise ValueError(f"backend: got {value!r}, must be onebatch or sklearn-extra")


def improve_medoids(
    distances: NDArray[np.float32], medoids: NDArray[np.int64], backend: Backend
) -> NDArray[np.int64]:
    """Swap medoids for other points until no swap lowers the total distance.

    Parameters
    ----------
    distances : array of shape (n, n), float32, C-contiguous
        Distances in [0, 1], with a zero diagonal. Not changed.
    medoids : array of shape (C,), int64
        Where to start: C different points, 2 <= C < n.
    backend : "onebatch" or "sklearn-extra"
        The library.

    Returns
    -------
    array of shape (C,), int64
        C different points whose loss is at most that of `medoids`, up to rounding.

    Raises
    ------
    ImportError
        If the library cannot be loaded.
    """
    if backend == "onebatch":
        return _onebatch(distances, medoids)
    return _sklearn_extra(distances, medoids)


def _onebatch(distances: NDArray[np.float32], medoids: NDArray[np.int64]) -> NDArray[np.int64]:
    # The estimator OneBatchPAM always starts cold; its swap phase takes the start we have.
    from onebatch.pam import swap_eager

    n = len(distances)
    solution = swap_eager(
        distances, medoids.astype(np.int32), len(medoids), _MAX_PASSES, n, n, 1e-6, None
    )
    return np.array(solution["medoids"], dtype=np.int64)


def _sklearn_extra(distances: NDArray[np.float32], medoids: NDArray[np.int64]) -> NDArray[np.int64]:
    try:
        from sklearn_extra.cluster import KMedoids
    except (ImportError, ValueError) as error:  # ValueError: built for NumPy 1, loaded beside 2
        raise ImportError(
            "backend sklearn-extra: scikit-learn-extra cannot be loaded; it needs Python 3.11, "
            "NumPy < 2 and scikit-learn < 1.10: pip install '.[sklearn-extra]'"
        ) from error

    class Started(KMedoids):  # type: ignore[misc]
        # The public way to give a start, rows of the matrix, cannot tell equal rows apart.
        def _initialize_medoids(self, *_: object) -> NDArray[np.int64]:
            return medoids.copy()

    model = Started(
        n_clusters=len(medoids), metric="precomputed", method="pam", max_iter=_MAX_PASSES
    )
    return np.asarray(model.fit(distances).medoid_indices_, dtype=np.int64)
