"""Features of pairs of clients, and how well each predicts a pair's use (SCKM paper, section 4)."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from strategies.selection import sckm_matrix

__all__ = ["FEATURES", "pair_features", "pairs", "probe_loss", "ranks", "relative_accuracy"]

# As the columns of the paper's Tables 3 and 4.
FEATURES = ("cos1", "cos2", "cos3", "cos4", "d2", "d2²", "m1", "m2", "m3", "m4", "SCKM")

_ORDERS = (1, 2, 3, 4)
# Inverse of scikit-learn's penalty on the weights: in effect there is none, as in Eq. 5.
_UNPENALISED = 1e8


def pairs(count: int) -> list[tuple[int, int]]:
    """Return the pairs (i, j) with i < j of `count` clients."""
    return list(combinations(range(count), 2))


def pair_features(updates: ArrayLike) -> NDArray[np.float64]:
    """Return the features of Table 2 for every pair of clients.

    Parameters
    ----------
    updates : array of shape (K, d), float32 or float64
        The clients' gradients or local updates, all layers together; K at least 2.

    Returns
    -------
    array of shape (K (K - 1) / 2, 11), float64: rows as `pairs(K)`, columns as `FEATURES`.

    * cos_p = <u, v>_p / (||u||_p ||v||_p), 0 for a zero vector, with the paper's
      <u, v>_p = (||u + v||_p - ||u - v||_p) / 4. The norms are not squared, so that cos_2 is not
      the cosine, and none is free of scale.
    * d_2 = ||u - v||_2 and its square.
    * m_k = mean over entries of u^k + v^k.
    * SCKM = mean over entries of u² v + u v² (Eq. 8).

    Raises
    ------
    ValueError
        If there are fewer than two rows, or an entry is not finite.
    """
    g = np.asarray(updates)
    if g.ndim != 2 or len(g) < 2:
        raise ValueError(f"updates must have shape (K, d) with K at least 2, got {g.shape}")
    sckm = sckm_matrix(g)  # checks the entries too
    norms = np.array([_norms(row) for row in g])
    moments = np.array([_moments(row) for row in g])
    rows = []
    for i, j in pairs(len(g)):
        distances = _norms(g[i].astype(np.float64) - g[j])
        products = (_norms(g[i].astype(np.float64) + g[j]) - distances) / 4
        scale = norms[i] * norms[j]
        cosines = np.divide(products, scale, out=np.zeros_like(scale), where=scale > 0)
        distance = distances[1]
        sums = moments[i] + moments[j]
        rows.append([*cosines, distance, distance**2, *sums, sckm[i, j]])
    return np.array(rows)


def probe_loss(feature: ArrayLike, labels: ArrayLike) -> float:
    """Return the least mean binary cross-entropy of labels in [0, 1] by one feature (Eq. 5).

    Fitted by scikit-learn's LogisticRegression, without a penalty, on the standardised feature. A
    label y between 0 and 1 is a positive example of weight y and a negative one of weight 1 - y,
    which has the same loss. Departure: with an intercept, which Eq. 5 does not show; without one
    the prediction at the feature's mean would have to be 1/2.

    Parameters
    ----------
    feature, labels : arrays of shape (n,)

    Raises
    ------
    ValueError
        If shapes differ, a feature is not finite, or a label is outside [0, 1].
    """
    x, y = np.asarray(feature, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or not len(x):
        raise ValueError(f"feature and labels must have one shape (n,), got {x.shape}, {y.shape}")
    if not np.isfinite(x).all() or not ((y >= 0) & (y <= 1)).all():
        raise ValueError("features must be finite and labels in [0, 1]")
    z = _standardised(x)
    if not z.any() or y.min() == y.max():  # then the best is to predict the mean label
        return _cross_entropy(np.full_like(y, y.mean()), y)
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(solver="newton-cholesky", C=_UNPENALISED, tol=1e-8, max_iter=1000)
    model.fit(
        np.concatenate([z, z])[:, np.newaxis],
        np.repeat([1, 0], len(y)),
        sample_weight=np.concatenate([y, 1 - y]),
    )
    return _cross_entropy(model.predict_proba(z[:, np.newaxis])[:, 1], y)


def ranks(losses: ArrayLike) -> NDArray[np.float64]:
    """Return Eq. 6 along the last axis: 1 for the smallest loss; equal losses share their mean."""
    return np.asarray(rankdata(np.asarray(losses), axis=-1), dtype=np.float64)


def relative_accuracy(losses: ArrayLike) -> NDArray[np.float64]:
    """Return Eq. 7 along the last axis: by which share a loss is below the largest."""
    values = np.asarray(losses, dtype=np.float64)
    largest = values.max(axis=-1, keepdims=True)
    unknown = np.zeros_like(values)
    return np.asarray(np.divide(largest - values, largest, out=unknown, where=largest > 0))


def _norms(vector: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the p-norms for p = 1 to 4, shape (4,)."""
    size = np.abs(vector).astype(np.float64)
    largest = float(size.max(initial=0.0))
    if largest == 0:
        return np.zeros(len(_ORDERS))
    size /= largest  # so that the fourth power of small entries does not underflow
    square = size * size
    sums = np.array([size.sum(), square.sum(), size @ square, square @ square])
    return np.asarray(largest * sums ** (1 / np.array(_ORDERS)))


def _moments(vector: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the mean of the entries' powers 1 to 4, shape (4,)."""
    g = vector.astype(np.float64)
    square = g * g
    return np.array([g.sum(), square.sum(), g @ square, square @ square]) / len(g)


def _standardised(x: NDArray[np.float64]) -> NDArray[np.float64]:
    deviation = x.std()
    if deviation <= 1e-12 * np.abs(x).max():
        return np.zeros_like(x)
    return np.asarray((x - x.mean()) / deviation)


def _cross_entropy(predicted: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    from scipy.special import xlogy

    terms = xlogy(labels, predicted) + xlogy(1 - labels, 1 - predicted)
    return float(-terms.mean())
