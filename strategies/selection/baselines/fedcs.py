"""FedCS: as many clients as fit before a deadline, fastest first."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from strategies.selection._validation import as_budget
from strategies.selection.baselines._checks import as_vector

__all__ = ["select_fedcs"]


def select_fedcs(
    seconds: ArrayLike,
    budget: int,
    rng: np.random.Generator,
    *,
    deadline: float = np.inf,
) -> NDArray[np.int64]:
    """Add, again and again, the client that lengthens the round least.

    "Client selection for federated learning with heterogeneous resources in mobile edge" (ICC
    2019), Algorithm 3.

    Departures: clients work and send in parallel, so a round lasts as long as its slowest client
    and the greedy order is by time (the paper lets uploads share one channel, one after another);
    the time is the last one measured, not one the client forecasts, and a client not yet measured
    counts as 0 s so that it gets measured; ties go at random. The fastest client is picked even if
    it misses the deadline: a round needs someone.

    Parameters
    ----------
    seconds : array of shape (K,)
        Time each client needs, NaN if never measured.
    budget : int
        m, the most clients to pick, from 1 to K.
    rng : numpy.random.Generator
        Breaks ties.
    deadline : float
        Longest round wanted, in seconds, above 0.

    Returns
    -------
    array of shape (at most m,), int64
        Fastest first; at least one row.

    Raises
    ------
    TypeError, ValueError
        If `budget` is not an integer in range, a time is negative, or `deadline` is not above 0.
    """
    times = as_vector(seconds, "seconds", least=0, unknown=True)
    as_budget(budget, times.size)
    if not deadline > 0:
        raise ValueError(f"deadline must be above 0 seconds, got {deadline!r}")
    times = np.nan_to_num(times, nan=0.0, posinf=np.inf)
    rows = np.lexsort((rng.random(times.size), times))[:budget]
    fits = max(1, int(np.searchsorted(times[rows], deadline, side="right")))
    return rows[:fits].astype(np.int64)
