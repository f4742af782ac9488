from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strategies.naming import natural_key
from strategies.roster import Roster


def test_names_hold_across_reconnections() -> None:
    roster = Roster()
    roster.introduce(7, "b", 30)
    roster.select(["b"], 2)
    roster.time("b", 1.5)
    assert roster.name(7) == roster.label(7) == "b"
    assert roster.name(8) is None
    assert roster.label(8) == "node 8"
    roster.introduce(9, "b", 40)
    assert roster.nodes_by_name([7, 9]) == {"b": 9}
    assert roster.nodes_by_name([7]) == {"b": 7}
    assert roster.nodes_by_name([]) == {}
    pool = roster.pool(["b"], 5)
    assert (pool.examples.tolist(), pool.ages.tolist(), pool.seconds.tolist()) == ([40], [3], [1.5])


def test_the_unknown_have_waited_all_along() -> None:
    pool = Roster().pool(["x", "c10", "c2"], 6)
    assert pool.names == ("c2", "c10", "x")
    assert pool.ages.tolist() == [6, 6, 6]
    assert pool.examples.tolist() == [1, 1, 1]
    assert np.isnan(pool.seconds).all()
    assert pool.ages.dtype == pool.examples.dtype == np.int64


def test_the_state_is_by_name_and_survives_json() -> None:
    roster = Roster()
    roster.introduce(7, "b", 30)
    roster.select(["b", "a"], 2)
    roster.time("a", 0.25)
    state = json.loads(json.dumps(roster.state_dict()))
    restored = Roster()
    restored.load_state_dict(state)
    assert restored.name(7) is None
    a, b = restored.pool("ab", 5), roster.pool("ab", 5)
    assert a.ages.tolist() == b.ages.tolist() == [3, 3]
    assert a.examples.tolist() == b.examples.tolist() == [1, 30]
    np.testing.assert_array_equal(a.seconds, b.seconds)
    restored.select(["a"], 5)
    assert roster.ages("a", 5).tolist() == [3], "the state is a copy"


@given(st.lists(st.integers(0, 10**6), unique=True))
def test_numbers_sort_as_numbers(numbers: list[int]) -> None:
    names = [f"site-{n}" for n in numbers]
    assert sorted(names, key=natural_key) == [f"site-{n}" for n in sorted(numbers)]


@given(st.lists(st.text("a1٣²-", max_size=4), unique=True, max_size=6), st.randoms())
def test_any_names_have_one_order(names: list[str], rng: st.DrawFn) -> None:
    shuffled = list(names)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert sorted(names, key=natural_key) == sorted(shuffled, key=natural_key)
    assert len({natural_key(name) for name in names}) == len(names)
