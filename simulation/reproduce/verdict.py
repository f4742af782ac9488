"""What runs with different seeds say of a statement: it holds, it does not, or they cannot tell.

A difference is called one only if it exceeds two standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulation.outcomes import mean_and_error
from simulation.reproduce.item import Claim

__all__ = ["above", "difference", "within", "within_of"]

_ERRORS = 2.0


def difference(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Return mean(a) - mean(b) and its standard error, sqrt(s_a²/n_a + s_b²/n_b) (Welch).

    The groups are taken as independent. The error is NaN where a group has fewer than two values
    that are not NaN.
    """
    (mean_a, error_a), (mean_b, error_b) = mean_and_error(a), mean_and_error(b)
    return mean_a - mean_b, math.hypot(error_a, error_b)


def above(text: str, a: Sequence[float], b: Sequence[float], *, margin: float = 0.0) -> Claim:
    """Judge whether a's mean is more than b's plus `margin`, which may be negative.

    It holds, or does not, only beyond two standard errors; else, and without errors, it is open.
    """
    mean, error = difference(a, b)
    excess = mean - margin
    holds = excess > 0 if abs(excess) > _ERRORS * error else None
    return Claim(text, holds, _numbers(a, b, mean, error))


def within(text: str, a: Sequence[float], number: float, tolerance: float) -> Claim:
    """Judge whether a's mean is within `tolerance` of a number.

    It holds if the mean is; it does not if the mean is farther by more than two standard errors.
    In between, and without an error, it is open.
    """
    mean, error = mean_and_error(a)
    distance = abs(mean - number)
    numbers = f"{_with_error(mean, error)} against {number:.4f}: {mean - number:+.4f}"
    return Claim(text, _close(distance, error, tolerance), numbers)


def within_of(text: str, a: Sequence[float], b: Sequence[float], tolerance: float) -> Claim:
    """Judge whether the means of a and b are within `tolerance` of each other, as `within`."""
    mean, error = difference(a, b)
    return Claim(text, _close(abs(mean), error, tolerance), _numbers(a, b, mean, error))


def _close(distance: float, error: float, tolerance: float) -> bool | None:
    if math.isnan(distance) or math.isnan(error):
        return None
    if distance <= tolerance:
        return True
    return False if distance - tolerance > _ERRORS * error else None


def _numbers(a: Sequence[float], b: Sequence[float], mean: float, error: float) -> str:
    first, second = _with_error(*mean_and_error(a)), _with_error(*mean_and_error(b))
    known = "" if math.isnan(error) else f" ± {error:.4f}"
    return f"{first} against {second}: {mean:+.4f}{known}"


def _with_error(mean: float, error: float) -> str:
    return f"{mean:.4f}" if math.isnan(error) else f"{mean:.4f} ± {error:.4f}"
