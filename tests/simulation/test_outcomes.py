import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.results import Run
from simulation.outcomes import common_target, group_runs, mean_and_error, measure, traffic
from simulation.table import as_text, comparison_table


def run(
    accuracy: list[float | None],
    *,
    picks: list[list[str]] | None = None,
    names: list[str] | None = None,
    **config: Any,
) -> Run:
    """A run of two clients; None is a round without an evaluation."""
    names = names or ["a", "b"]
    rounds = []
    for number, value in enumerate(accuracy, start=1):
        metrics = {} if value is None else {"accuracy": value, "worst-accuracy": value / 2}
        selected = picks[number - 1] if picks else [names[0]]
        line = {
            "round": number,
            "eligible": names,
            "selected": selected,
            "replied": selected,
            "bytes-down": {"sketch": 10, "train": 1},
            "bytes-up": {"train": 100 * number},
            "metrics": metrics,
        }
        rounds.append(line)
    return Run(Path("run"), {"strategy": "uniform", "seed": 0, **config}, rounds)


def test_measures_what_it_says() -> None:
    outcome = measure(run([0.1, None, 0.5, 0.4]), target=0.5)
    assert outcome.final == 0.4
    assert outcome.average == pytest.approx((0.1 + 0.5 + 0.4) / 3)
    assert outcome.worst == 0.2
    assert outcome.rounds == 3
    assert outcome.bytes == 3 * 11 + 100 + 200 + 300
    assert outcome.variation == 0.5  # all picks to one of two


def test_a_target_never_reached_is_nan() -> None:
    outcome = measure(run([0.1, 0.2]), target=0.3)
    assert math.isnan(outcome.rounds)
    assert math.isnan(outcome.bytes)


def test_a_run_without_evaluations_is_nan_but_has_picks() -> None:
    outcome = measure(run([None, None], picks=[["a"], ["b"]]), target=0.3)
    assert math.isnan(outcome.final)
    assert outcome.variation == 0


@given(st.lists(st.integers(0, 7), min_size=1, max_size=60), st.integers(1, 8))
def test_variation_is_the_largest_gap_over_sets_of_clients(picked: list[int], count: int) -> None:
    names = [f"c{i}" for i in range(8)]
    picks = [[names[i % count]] for i in picked]
    outcome = measure(run([0.0] * len(picks), picks=picks, names=names[:count]), target=1)
    shares = np.bincount([i % count for i in picked], minlength=count) / len(picked)
    # The definition: the largest difference of probability of any event.
    gaps = [
        abs(sum(shares[i] - 1 / count for i in range(count) if event >> i & 1))
        for event in range(2**count)
    ]
    assert outcome.variation == pytest.approx(max(gaps), abs=1e-12)


def test_traffic_adds_up() -> None:
    np.testing.assert_array_equal(traffic(run([None, None])), [111, 111 + 211])


def test_common_target_is_reached_by_all() -> None:
    assert common_target([run([0.1, 0.296]), run([0.29, 0.2])]) == 0.29
    assert common_target([run([None]), run([0.9])]) == 0
    assert common_target([]) == 0


def test_groups_differ_in_more_than_the_seed() -> None:
    runs = [
        run([0.1], seed=0, theta=0.5, out="x"),
        run([0.2], seed=1, theta=0.5, out="y"),
        run([0.3], seed=0, theta=0.8, out="z"),
    ]
    first, second = group_runs(runs)
    assert (first.label, second.label) == ("uniform (theta 0.5)", "uniform (theta 0.8)")
    assert first.runs == tuple(runs[:2])
    assert [group.label for group in group_runs(runs[:2])] == ["uniform"]


def test_mean_and_error_are_the_textbooks() -> None:
    values = [1.0, 2.0, 4.0, math.nan]
    mean, error = mean_and_error(values)
    assert mean == pytest.approx(7 / 3)
    variance = sum((v - 7 / 3) ** 2 for v in values[:3]) / 2
    assert error == pytest.approx(math.sqrt(variance / 3))
    assert math.isnan(mean_and_error([5.0])[1])
    assert all(math.isnan(value) for value in mean_and_error([math.nan]))


def test_table_says_how_many_seeds_reached_the_target() -> None:
    groups = group_runs([run([0.4], seed=0), run([0.6], seed=1), run([0.8], seed=2)])
    table = comparison_table(groups, target=0.5)
    row = dict(zip(table.headings, table.rows[0], strict=True))
    assert row["seeds"] == "3"
    assert row["final accuracy"] == "0.600 ± 0.115"
    assert row["rounds to 0.50"] == "1 ± 0 (2 of 3)"
    assert row["bytes to 0.50"] == "111 B ± 0 B (2 of 3)"
    lines = as_text(table).splitlines()
    assert lines[0].index("final accuracy") == lines[1].index("0.600")
