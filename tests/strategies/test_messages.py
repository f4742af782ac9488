from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st

from strategies.answering import answer_roll_call
from strategies.messages import count_bytes, float_shapes
from strategies.randomness import derive_key, derive_rng
from strategies.sketch import SketchSpec

SCALARS: Any = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.text("abc", min_size=1, max_size=5),
)


@given(st.dictionaries(st.text("xyz", min_size=1, max_size=3), SCALARS, max_size=5))
def test_bytes_of_a_config_are_flowers_count_where_flower_can_count(values: Any) -> None:
    record = ConfigRecord(values)
    assert count_bytes(RecordDict({"config": record})) == record.count_bytes()


def test_empty_texts_and_lists_count_too() -> None:
    """Keys of 1 byte each; numbers 8, truth 1, a text its length, a list the sum."""
    config = ConfigRecord({"a": "", "b": [], "c": [1, 2], "d": ["xy", ""], "e": True, "f": b"123"})
    assert count_bytes(RecordDict({"config": config})) == 6 + 0 + 0 + 16 + 2 + 1 + 3


def test_arrays_and_metrics_count_as_flower_counts_them() -> None:
    arrays = ArrayRecord({"w": Array(np.zeros((3, 4), np.float32))})
    metrics = MetricRecord({"x": 1.0, "y": [1, 2, 3]})
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    assert count_bytes(content) == arrays.count_bytes() + metrics.count_bytes()
    assert count_bytes(content) > 3 * 4 * 4


def test_an_update_has_the_floating_point_arrays() -> None:
    arrays = ArrayRecord(
        {
            "w": Array(np.zeros((2, 3), np.float32)),
            "n": Array(np.array(1)),
            "h": Array(np.zeros(4, np.float16)),
            "m": Array(np.zeros(2, np.bool_)),
        }
    )
    assert float_shapes(arrays) == {"w": (2, 3), "h": (4,)}


def roll_call(needs: list[str]) -> Message:
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    config = {
        "round": 4,
        "needs": needs,
        "sketch-ratio": 0.5,
        "sketch-kind": "subsample",
        "sketch-layers": ["w*"],
        "sketch-seed": 6,
    }
    return Message(RecordDict({"config": ConfigRecord(config)}), 2, "train.sketch")


def test_answering_sends_what_is_asked_for() -> None:
    update = {"w1": np.arange(4.0), "b": np.array([12.0])}
    content = answer_roll_call(
        roll_call(["loss", "norm", "sketch"]), name="n", examples=9, update=update, loss=0.5
    )
    assert content["client"] == ConfigRecord({"name": "n"})
    norm = float(np.sqrt(0 + 1 + 4 + 9 + 144))
    assert dict(content["metrics"]) == {"round": 4, "num-examples": 9, "loss": 0.5, "norm": norm}
    want = SketchSpec(ratio=0.5, layers=("w*",), seed=6).apply(4, update)
    np.testing.assert_array_equal(content["sketch"]["values"].numpy(), want)
    bare = answer_roll_call(roll_call([]), name="n", examples=9, update=update, loss=0.5)
    assert dict(bare["metrics"]) == {"round": 4, "num-examples": 9}
    assert set(bare) == {"client", "metrics"}


@pytest.mark.parametrize(
    ("need", "missing"), [("loss", "loss"), ("norm", "update"), ("sketch", "update")]
)
def test_answering_without_what_is_asked_for_is_an_error(need: str, missing: str) -> None:
    with pytest.raises(ValueError, match=missing):
        answer_roll_call(roll_call([need]), name="n", examples=9)


PARTS = st.tuples(
    st.integers(0, 2**63), st.integers(0, 99), st.text(max_size=4), st.text(max_size=4)
)


@given(PARTS, PARTS)
def test_draws_differ_unless_all_of_their_names_agree(a: Any, b: Any) -> None:
    assert (derive_key(*a) == derive_key(*b)) is (a == b)
    assert derive_rng(*a).random() == derive_rng(*a).random()


def test_a_draw_is_the_same_everywhere() -> None:
    """Philox keyed with BLAKE2b of the text (3, 1, 'x', 'y'); see test_sketch.py for both."""
    assert (
        derive_rng(3, 1, "x", "y").bit_generator.random_raw()
        == np.random.Philox(key=derive_key(3, 1, "x", "y")).random_raw()
    )
    assert derive_key(np.int64(3), np.int32(1), "x", "y") == derive_key(3, 1, "x", "y")
