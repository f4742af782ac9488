"""ADCS: greedy MAP of a determinantal point process over clients, without its K x K kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.selection._blocks import in_threads
from strategies.selection._validation import (
    as_age,
    as_budget,
    as_fraction,
    as_quality,
    as_sketches,
    reject_non_finite,
)
from strategies.selection.types import FloatArray

__all__ = ["adcs_scores", "dpp_kernel", "select_adcs"]

# A row is spent when less than this is left of its unit sketch (squared) after projecting out the
# chosen ones. Sketches are float32, so what is left of a dependent row is their rounding, whatever
# the precision of the arithmetic.
_SPENT = 1e-10
# Gains this close are a tie: equal clients must not be told apart by the order of a sum.
_TIE = 1e-9
_SMALLEST_BATCH = 64
# Rows of a screened batch that are looked at exactly before the others.
_TOP = 8
# Screening with a larger error than this would let too many rows through.
_LARGEST_ERROR = 1e-3
# Entries of a block of rows, and multiplications in one product with the basis: small enough that
# the block stays in the cache and that the BLAS stays on one core, which is faster at this size.
_BLOCK = 2**16
_PRODUCT = 10**6
_MANY_BLOCKS = 32  # below that, threads cost more than they save


def dpp_kernel(sketches: ArrayLike, quality: ArrayLike, theta: float) -> NDArray[np.float64]:
    """Return the L-ensemble kernel Q C Q, Eqs. 5 and 7 of the ADCS paper.

    For small pools and for checking: `select_adcs` needs no kernel. A zero update has no direction;
    its row and column are 0.

    Parameters
    ----------
    sketches : array of shape (K, p), float32 or float64
        One row per client.
    quality : array of shape (K,)
        Quality scores, finite and at least 0.
    theta : float
        Weight of quality against diversity, in [0, 1); alpha = theta / (2 (1 - theta)).

    Returns
    -------
    array of shape (K, K), float64

    Raises
    ------
    ValueError, TypeError
        If an argument is not as described, or exp(alpha quality) overflows.
    """
    sketches = as_sketches(sketches)
    quality = as_quality(quality, len(sketches))
    theta = as_fraction(theta, "theta")
    if theta == 1.0:
        raise ValueError("theta: got 1, must be below 1 for a kernel (alpha is infinite)")
    sketches, _, _ = _prepare(sketches)
    unit = _unit_rows(sketches)
    half_log_weight = _log_weight(quality, theta) / 2
    if 2 * half_log_weight.max() > np.log(np.finfo(np.float64).max):
        raise ValueError("quality: exp(2 alpha quality) overflows float64, use select_adcs")
    weight = np.exp(half_log_weight)
    return weight[:, None] * (unit @ unit.T) * weight


def select_adcs(
    sketches: ArrayLike,
    quality: ArrayLike,
    theta: float,
    budget: int,
    *,
    age: ArrayLike | None = None,
) -> NDArray[np.int64]:
    """Pick `budget` clients by greedy MAP inference, Eq. 9 of the ADCS paper.

    The gain of a client is 2 alpha q + log r², r² being what remains of its unit sketch after
    projecting out the chosen ones. Gains only shrink, so a stale one is an upper bound, and only
    clients whose bound reaches the best fresh gain are brought up to date: float32 sketches first
    in float32, whose result plus its largest possible error is an upper bound again, and only what
    still reaches the best gain in float64. The picks are those of greedy MAP on `dpp_kernel`.
    Memory is O(K + budget p); the kernel is never formed.

    Departures, where the paper is silent: gains within 1e-9 are ties and go to the larger age,
    then the lower row; when no client adds rank (r² <= 1e-10) the places left are filled by
    quality, then age, then row; theta = 1 is the top `budget` by quality.

    Parameters
    ----------
    sketches : array of shape (K, p), float32 or float64
        One row per client.
    quality : array of shape (K,)
        Quality scores, finite and at least 0.
    theta : float
        Weight of quality against diversity, in [0, 1].
    budget : int
        How many clients to pick, from 1 to K.
    age : array of shape (K,), optional
        Rounds since each client was last selected, at least 0.

    Returns
    -------
    array of shape (budget,), int64
        Rows in greedy order.

    Raises
    ------
    ValueError, TypeError
        If an argument is not as described; a NaN or an infinity in a sketch is named by its row.
    """
    return _checked_greedy(sketches, quality, theta, budget, age).rows()


def adcs_scores(
    sketches: ArrayLike,
    quality: ArrayLike,
    theta: float,
    budget: int,
    *,
    age: ArrayLike | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the rows `select_adcs` picks and a score per client that ranks all of them.

    The score of a picked client is its gain when it was picked, that of any other the gain it would
    bring as the next pick, so that sorting by score gives the picks first and then their best
    replacements. Clients that add no rank come last, by quality. With theta = 1 it is the quality.
    Takes the arguments of `select_adcs`, and one more pass over the sketches.

    Returns
    -------
    rows : array of shape (budget,), int64
    scores : array of shape (K,), float64
    """
    greedy = _checked_greedy(sketches, quality, theta, budget, age)
    return greedy.rows(), greedy.scores()


def _checked_greedy(
    sketches: ArrayLike,
    quality: ArrayLike,
    theta: float,
    budget: int,
    age: ArrayLike | None,
) -> _Greedy:
    sketches = as_sketches(sketches)
    clients = len(sketches)
    quality = as_quality(quality, clients)
    theta = as_fraction(theta, "theta")
    budget = as_budget(budget, clients)
    return _Greedy(sketches, quality, theta, budget, as_age(age, clients))


def _log_weight(quality: NDArray[np.float64], theta: float) -> NDArray[np.float64]:
    """Return 2 alpha q, the logarithm of a client's weight in the kernel's diagonal."""
    return quality * (theta / (1.0 - theta))


def _prepare(
    sketches: FloatArray,
) -> tuple[FloatArray, NDArray[np.bool_], NDArray[np.float64]]:
    """Check the entries; return sketches whose squares fit float64, and which rows are not zero.

    Also the squared norms as far as the sketches' own precision holds them, else NaN.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", sketches, sketches)
    limits = np.finfo(squares.dtype)
    # Squares that overflowed or lost digits to underflow are rare; look at those rows themselves.
    doubtful = np.flatnonzero(~((squares > limits.tiny / limits.eps) & (squares < limits.max)))
    nonzero = np.ones(len(sketches), dtype=np.bool_)
    norm2 = squares.astype(np.float64)
    norm2[doubtful] = np.nan
    if len(doubtful):
        reject_non_finite(sketches)
        peaks = np.abs(sketches[doubtful]).max(axis=1)
        nonzero[doubtful] = peaks > 0
        if sketches.dtype == np.float64 and nonzero[doubtful].any():
            sketches = sketches.copy()
            # A power of two, so that rescaling rounds nothing.
            exponents = -np.frexp(peaks)[1]
            sketches[doubtful] = np.ldexp(sketches[doubtful], exponents[:, None])
    return sketches, nonzero, norm2


def _unit_rows(sketches: FloatArray) -> NDArray[np.float64]:
    """Return the rows at unit length in float64, zero rows as they are."""
    rows = sketches.astype(np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    norms[norms == 0] = 1.0
    rows /= norms[:, None]
    return rows


class _Greedy:
    """Lazy greedy MAP over valid input."""

    def __init__(
        self,
        sketches: FloatArray,
        quality: NDArray[np.float64],
        theta: float,
        budget: int,
        age: NDArray[np.float64],
    ) -> None:
        self._sketches, nonzero, self._rough_norm2 = _prepare(sketches)
        entries = sketches.shape[1]
        # Largest error of a float32 product with a unit vector over the norm of the row: rounding
        # of the vector, of each product and of each partial sum.
        self._error = (entries + 2) * float(np.finfo(np.float32).eps)
        self._screens = (
            sketches.dtype == np.float32
            and self._error < _LARGEST_ERROR
            and not np.isnan(self._rough_norm2).any()
        )
        self._quality = quality
        self._quality_only = theta == 1.0
        self._log_weight = quality if self._quality_only else _log_weight(quality, theta)
        self._age = age
        self._basis = np.empty((budget, entries))
        self._basis32 = np.empty((budget, entries), dtype=np.float32)
        self._rank = 0
        self._rest = nonzero.astype(np.float64)  # r², at the time of `_stamp`
        self._stamp = np.zeros(len(sketches), dtype=np.int64)  # basis vectors projected out
        self._bound = self._rest.copy()  # not below r², at the time of `_screened`
        self._screened = self._stamp.copy()
        self._norm2 = np.empty(len(sketches))  # set when a row is first looked at
        with np.errstate(divide="ignore"):
            self._gain = self._log_weight + np.log(self._rest)
        self._batch = _SMALLEST_BATCH
        self._picked: list[int] = []
        self._picked_gain: list[float] = []
        while len(self._picked) < budget and not self._quality_only:
            row = self._best()
            if row is None:
                break
            self._pick(row)
        self._fill(budget)

    def rows(self) -> NDArray[np.int64]:
        return np.array(self._picked, dtype=np.int64)

    def scores(self) -> NDArray[np.float64]:
        if self._quality_only:
            return self._quality.copy()
        self._refresh(np.flatnonzero(np.isfinite(self._gain) & (self._stamp < self._rank)))
        scores = self._gain.copy()
        scores[self._picked[: self._rank]] = self._picked_gain
        spent = ~np.isfinite(scores)
        lowest = scores[~spent].min(initial=np.inf)
        floor = (lowest if np.isfinite(lowest) else 0.0) + np.log(_SPENT)
        scores[spent] = floor + self._quality[spent] - self._quality.max()
        return scores

    def _best(self) -> int | None:
        """Return the row of largest gain, None if no row adds rank."""
        first = int(self._gain.argmax())
        if self._gain[first] == -np.inf:
            return None
        if self._rank:
            self._refresh(np.array([first]))
        best = self._gain[first]
        fresh = [np.array([first])]
        possible = self._gain >= best - _TIE if best > -np.inf else self._gain > best
        stale = np.flatnonzero(possible & (self._stamp < self._rank))
        batches = 0
        while len(stale):
            batches += 1
            if len(stale) > self._batch:
                top = np.argpartition(self._gain[stale], len(stale) - self._batch)
                now, stale = stale[top[-self._batch :]], stale[top[: -self._batch]]
                self._batch *= 2
            else:
                now, stale = stale, stale[:0]
            if self._screens and len(now) > _SMALLEST_BATCH:
                self._screen(now)
                top = now[np.argpartition(self._gain[now], len(now) - _TOP)[-_TOP:]]
                self._refresh(top)
                fresh.append(top)
                best = max(best, self._gain[top].max())
                now = now[(self._gain[now] >= best - _TIE) & (self._stamp[now] < self._rank)]
            self._refresh(now)
            fresh.append(now)
            best = max(best, self._gain[now].max(initial=best))
            stale = stale[self._gain[stale] >= best - _TIE]
        if batches < 2:
            self._batch = max(_SMALLEST_BATCH, self._batch // 2)
        if best == -np.inf:
            return None
        rows = np.concatenate(fresh) if self._rank else np.arange(len(self._gain))
        ties = rows[self._gain[rows] >= best - _TIE]
        return int(ties[np.lexsort((ties, -self._age[ties]))[0]])

    def _refresh(self, rows: NDArray[np.int64]) -> None:
        """Bring the gains of `rows` up to date in float64."""
        self._in_blocks(self._refresh_block, rows, self._stamp)

    def _screen(self, rows: NDArray[np.int64]) -> None:
        """Lower the gains of `rows` to what float32 shows they cannot exceed."""
        self._in_blocks(self._screen_block, rows, self._screened)

    def _in_blocks(
        self,
        function: Callable[[NDArray[np.int64]], None],
        rows: NDArray[np.int64],
        stamp: NDArray[np.int64],
    ) -> None:
        """Call `function` on parts of `rows`, those least up to date first."""
        rows = rows[np.argsort(stamp[rows], kind="stable")]
        entries = self._sketches.shape[1]
        blocks = []
        while len(rows):
            new = self._rank - int(stamp[rows[0]])
            step = max(1, min(_BLOCK, _PRODUCT // max(1, new)) // entries)
            blocks.append(rows[:step])
            rows = rows[step:]
        if len(blocks) < _MANY_BLOCKS:
            for block in blocks:
                function(block)
        else:
            in_threads(function, blocks)

    def _refresh_block(self, rows: NDArray[np.int64]) -> None:
        stamps = self._stamp[rows]
        oldest = int(stamps[0])
        g = self._sketches[rows].astype(np.float64)
        if oldest == 0:
            self._norm2[rows] = np.einsum("ij,ij->i", g, g)
        along = np.square(g @ self._basis[oldest : self._rank].T)
        along /= self._norm2[rows, None]
        along[np.arange(oldest, self._rank) < stamps[:, None]] = 0.0
        rest = self._rest[rows] - along.sum(axis=1)
        self._rest[rows] = self._bound[rows] = rest
        self._stamp[rows] = self._screened[rows] = self._rank
        spent = rest <= _SPENT
        rest[spent] = 1.0
        gain = self._log_weight[rows] + np.log(rest)
        gain[spent] = -np.inf
        self._gain[rows] = gain

    def _screen_block(self, rows: NDArray[np.int64]) -> None:
        stamps = self._screened[rows]
        oldest = int(stamps[0])
        along = np.abs(self._sketches[rows] @ self._basis32[oldest : self._rank].T)
        cosine = along / np.sqrt(self._rough_norm2[rows, None])
        least = np.maximum(cosine * (1.0 - self._error) - self._error, 0.0)
        least[np.arange(oldest, self._rank) < stamps[:, None]] = 0.0
        bound = np.maximum(self._bound[rows] - np.square(least).sum(axis=1), _SPENT)
        self._bound[rows] = bound
        self._screened[rows] = self._rank
        self._gain[rows] = self._log_weight[rows] + np.log(bound)

    def _pick(self, row: int) -> None:
        vector = _unit_rows(self._sketches[row : row + 1])[0]
        basis = self._basis[: self._rank]
        for _ in range(2):  # the second projection removes what rounding left of the first
            vector -= basis.T @ (basis @ vector)
        self._basis[self._rank] = vector / np.linalg.norm(vector)
        self._basis32[self._rank] = self._basis[self._rank]
        self._rank += 1
        self._picked.append(row)
        self._picked_gain.append(float(self._gain[row]))
        self._gain[row] = -np.inf

    def _fill(self, budget: int) -> None:
        order = np.lexsort((-self._age, -self._quality))
        order = order[~np.isin(order, self._picked)]
        self._picked.extend(order[: budget - len(self._picked)].tolist())
