import math

import numpy as np
import pytest

from simulation.reproduce.verdict import above, difference, within, within_of


def test_difference_is_that_of_welch() -> None:
    a, b = [1.0, 2.0, 3.0], [0.0, 4.0]
    mean, error = difference(a, b)
    assert mean == pytest.approx(0.0)
    assert error == pytest.approx(math.sqrt(1 / 3 + 8 / 2))
    assert difference(b, a) == (pytest.approx(-mean), pytest.approx(error))


def test_the_error_is_the_spread_of_the_difference() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(0.0, 1.0, (4000, 5))
    b = rng.normal(0.0, 3.0, (4000, 3))
    spread = (a.mean(axis=1) - b.mean(axis=1)).std()
    squares = [difference(x, y)[1] ** 2 for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert math.sqrt(np.mean(squares)) == pytest.approx(spread, rel=0.05)


# Each group's standard error is 0.1, that of a difference 0.1414: two of them are 0.2828.
def group(mean: float) -> list[float]:
    return [mean - 0.1, mean + 0.1]


@pytest.mark.parametrize(
    ("gap", "holds"), [(0.29, True), (0.27, None), (0.0, None), (-0.27, None), (-0.29, False)]
)
def test_above_is_called_beyond_two_standard_errors(gap: float, holds: bool | None) -> None:
    assert above("", group(1 + gap), group(1)).holds is holds
    assert above("", group(1 + gap - 0.5), group(1), margin=-0.5).holds is holds


@pytest.mark.parametrize(
    ("mean", "holds"),
    [(1.0, True), (1.05, True), (0.95, True), (1.07, None), (1.25, None), (1.27, False)],
)
def test_within_goes_by_the_mean(mean: float, holds: bool | None) -> None:
    assert within("", group(mean), 1.0, 0.06).holds is holds
    assert within("", group(2 - mean), 1.0, 0.06).holds is holds


def test_within_of_another_group_has_the_error_of_the_difference() -> None:
    assert within_of("", group(1.1), group(1.0), 0.11).holds is True
    assert within_of("", group(1.0), group(1.38), 0.1).holds is None
    assert within_of("", group(1.0), group(1.39), 0.1).holds is False


def test_without_errors_or_values_everything_is_open() -> None:
    for claim in (
        above("", [2.0], [1.0, 1.1]),
        above("", [math.nan] * 2, [1.0, 1.1]),
        within("", [1.0], 1.0, 0.1),
        within("", [math.nan] * 2, 1.0, 0.1),
        within_of("", [1.0, 1.1], [1.0], 0.2),
    ):
        assert claim.holds is None


def test_equal_seeds_have_no_error_and_any_difference_counts() -> None:
    assert above("", [0.3, 0.3], [0.2, 0.2]).holds is True
    assert above("", [0.2, 0.2], [0.2, 0.2]).holds is None


def test_the_numbers_are_those_it_was_judged_by() -> None:
    assert above("", group(1.5), group(1)).numbers == (
        "1.5000 ± 0.1000 against 1.0000 ± 0.1000: +0.5000 ± 0.1414"
    )
    assert above("", [1.5], group(1)).numbers == "1.5000 against 1.0000 ± 0.1000: +0.5000"
    assert within("", group(0.9), 1.0, 0.2).numbers == "0.9000 ± 0.1000 against 1.0000: -0.1000"
