from __future__ import annotations

import hashlib
import math
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import sketch as sketch_module
from strategies.sketch import SketchSpec

SHAPES: dict[str, tuple[int, ...]] = {"conv": (4, 3, 5, 5), "bias": (4,), "head": (10, 70)}

shapes_st = st.dictionaries(
    st.text("abc.", min_size=1, max_size=4),
    st.lists(st.integers(1, 12), max_size=3).map(tuple),
    min_size=1,
    max_size=4,
)
ratio_st = st.floats(0.0, 1.0, exclude_min=True, allow_subnormal=False)
seed_st = st.integers(0, 2**63 - 1)


def philox(key: int, count: int) -> list[int]:
    """Return the first outputs of Philox4x64-10 (Salmon et al., 2011), in plain integers."""
    mask = 2**64 - 1
    words: list[int] = []
    counter = 0
    while len(words) < count:
        counter += 1  # NumPy counts before it draws
        c0, c1, c2, c3 = counter, 0, 0, 0
        k0, k1 = key & mask, key >> 64
        for _ in range(10):
            a, b = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
            c0, c1, c2, c3 = (b >> 64) ^ c1 ^ k0, b & mask, (a >> 64) ^ c3 ^ k1, a & mask
            k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
        words += [c0, c1, c2, c3]
    return words[:count]


def key_of(seed: int, server_round: int, name: str, kind: str) -> int:
    text = f"({seed}, {server_round}, '{name}', '{kind}')"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def test_indices_follow_from_philox_in_plain_integers() -> None:
    spec = SketchSpec(ratio=0.05, seed=11)
    found = spec.indices(3, SHAPES)
    for name, shape in SHAPES.items():
        size = math.prod(shape)
        p = max(1, round(0.05 * size))
        draws = philox(key_of(11, 3, name, "subsample"), p + 1)
        offset = draws[p] % size if size % p else 0
        slices = [(i * size // p, (i + 1) * size // p) for i in range(p)]
        want = [
            (lo + draw % (hi - lo) + offset) % size
            for draw, (lo, hi) in zip(draws, slices, strict=False)
        ]
        assert found[name].tolist() == want


def test_buckets_and_signs_follow_from_philox_in_plain_integers() -> None:
    spec = SketchSpec(ratio=0.05, kind="projection", seed=11)
    for name, where in spec.indices(3, SHAPES).items():
        size = math.prod(SHAPES[name])
        draws = philox(key_of(11, 3, name, "projection"), size)
        p = spec.sizes(SHAPES)[name]
        assert where.tolist() == [2 * ((draw >> 1) % p) + draw % 2 for draw in draws]


def test_golden_indices() -> None:
    """8 entries, 3 drawn: slices of 2, 3 and 3 from 0, 2 and 5, then rotated.

    `philox` above gives draws whose remainders by 2, 3, 3 and 8 are 0, 1, 2 and 2, hence
    0 + 0 + 2 = 2, 2 + 1 + 2 = 5 and 5 + 2 + 2 = 9, which is 1 modulo 8.
    """
    draws = philox(key_of(0, 1, "w", "subsample"), 4)
    assert [draw % n for draw, n in zip(draws, (2, 3, 3, 8), strict=True)] == [0, 1, 2, 2]
    found = SketchSpec(ratio=3 / 8, seed=0).indices(1, {"w": (8,)})["w"].tolist()
    assert found == [2, 5, 1]


@given(shapes_st, ratio_st)
def test_sizes(shapes: dict[str, tuple[int, ...]], ratio: float) -> None:
    sizes = SketchSpec(ratio=ratio).sizes(shapes)
    assert list(sizes) == sorted(shapes)
    for name, count in sizes.items():
        assert count == max(1, round(ratio * math.prod(shapes[name])))


@given(shapes_st, ratio_st, seed_st, st.integers(1, 10**6))
def test_none_repeats_and_one_lies_in_each_slice(
    shapes: dict[str, tuple[int, ...]], ratio: float, seed: int, server_round: int
) -> None:
    spec = SketchSpec(ratio=ratio, seed=seed)
    for name, where in spec.indices(server_round, shapes).items():
        size, count = math.prod(shapes[name]), spec.sizes(shapes)[name]
        assert where.dtype == np.int64
        assert len(set(where.tolist())) == len(where) == count
        assert where.min() >= 0
        assert where.max() < size
        if size % count == 0:
            assert (where * count // size).tolist() == list(range(count))


@pytest.mark.parametrize(("size", "count"), [(4, 2), (5, 2), (7, 3), (6, 4), (5, 5), (3, 1)])
def test_every_coordinate_is_exactly_equally_likely(
    size: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Walk through all draws: every remainder of each slice's length, and of the offset."""
    lengths = [(i + 1) * size // count - i * size // count for i in range(count)]
    spec = SketchSpec(ratio=count / size)
    drawn: Counter[int] = Counter()
    outcomes = list(product(*map(range, lengths), range(size)))
    for draws in outcomes:
        raw = np.array(draws, dtype=np.uint64)
        monkeypatch.setattr(sketch_module, "_raw", lambda bits, n, raw=raw: raw[:n])
        drawn.update(spec.indices(1, {"w": (size,)})["w"].tolist())
    shares = {i: Fraction(drawn[i], len(outcomes)) for i in range(size)}
    assert shares == dict.fromkeys(range(size), Fraction(count, size))


def test_coordinates_come_about_equally_often_over_the_rounds() -> None:
    size, count, rounds = 13, 4, 4000
    spec = SketchSpec(ratio=count / size, seed=5)
    drawn = np.zeros(size)
    for server_round in range(1, rounds + 1):
        drawn[spec.indices(server_round, {"w": (size,)})["w"]] += 1
    spread = math.sqrt(rounds * count / size * (1 - count / size))
    assert np.abs(drawn - rounds * count / size).max() < 5 * spread


@given(shapes_st, ratio_st, seed_st, st.sampled_from(["subsample", "projection"]))
def test_neither_the_order_nor_the_other_layers_matter(
    shapes: dict[str, tuple[int, ...]], ratio: float, seed: int, kind: Any
) -> None:
    spec = SketchSpec(ratio=ratio, seed=seed, kind=kind)
    whole = spec.indices(2, shapes)
    turned = spec.indices(2, dict(reversed(shapes.items())))
    assert list(whole) == list(turned)
    for name in shapes:
        np.testing.assert_array_equal(whole[name], turned[name])
        np.testing.assert_array_equal(whole[name], spec.indices(2, {name: shapes[name]})[name])


def test_seed_round_layer_and_nothing_else_decide() -> None:
    shapes = {"a": (1000,), "b": (1000,)}
    spec = SketchSpec(ratio=0.1, seed=1)
    first = spec.indices(1, shapes)
    assert not np.array_equal(first["a"], first["b"])
    assert not np.array_equal(first["a"], spec.indices(2, shapes)["a"])
    assert not np.array_equal(first["a"], SketchSpec(ratio=0.1, seed=2).indices(1, shapes)["a"])
    np.random.seed(3)  # noqa: NPY002, the point is that it changes nothing
    np.testing.assert_array_equal(first["a"], spec.indices(1, {"a": (10, 100)})["a"])


def test_another_process_draws_the_same() -> None:
    code = (
        "from strategies.sketch import SketchSpec; "
        f"print(SketchSpec(ratio=0.05, seed=11).indices(3, {SHAPES})['head'].tolist())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "77"},
    )
    assert ran.stdout.strip() == str(
        SketchSpec(ratio=0.05, seed=11).indices(3, SHAPES)["head"].tolist()
    )


def test_a_subsample_is_the_entries_at_the_indices_layer_by_layer() -> None:
    rng = np.random.Generator(np.random.Philox(1))
    update = {name: rng.standard_normal(shape) for name, shape in SHAPES.items()}
    before = {name: array.copy() for name, array in update.items()}
    spec = SketchSpec(ratio=0.1, seed=4)
    where = spec.indices(9, SHAPES)
    want = [update[name].ravel()[i] for name in ("bias", "conv", "head") for i in where[name]]
    found = spec.apply(9, update)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array(want, dtype=np.float32))
    for name, array in update.items():
        np.testing.assert_array_equal(array, before[name])


def test_ratio_1_keeps_every_entry() -> None:
    update = {"w": np.arange(60.0).reshape(3, 20)}
    np.testing.assert_array_equal(SketchSpec(ratio=1.0).apply(1, update), np.arange(60.0))


@given(shapes_st, ratio_st, st.sampled_from(["subsample", "projection"]), st.floats(-4, 4))
def test_a_sketch_is_linear_and_as_long_as_announced(
    shapes: dict[str, tuple[int, ...]], ratio: float, kind: Any, factor: float
) -> None:
    rng = np.random.Generator(np.random.Philox(2))
    a = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    b = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    spec = SketchSpec(ratio=ratio, kind=kind)
    both = spec.apply(1, {name: a[name] + factor * b[name] for name in shapes})
    assert both.shape == (sum(spec.sizes(shapes).values()),)
    want = spec.apply(1, a).astype(np.float64) + factor * spec.apply(1, b)
    np.testing.assert_allclose(both, want, rtol=1e-4, atol=1e-4)


def test_a_projection_is_the_signed_sum_of_each_bucket() -> None:
    spec = SketchSpec(ratio=0.1, kind="projection", seed=3)
    values = np.random.Generator(np.random.Philox(5)).standard_normal(70)
    where = spec.indices(4, {"w": (70,)})["w"]
    want = np.zeros(7)
    for value, code in zip(values, where.tolist(), strict=True):
        want[code // 2] += -value if code % 2 else value
    np.testing.assert_allclose(spec.apply(4, {"w": values}), want, rtol=1e-6, atol=1e-6)


def test_a_projection_keeps_inner_products_in_expectation() -> None:
    """For a count sketch, Var[<Sa, Sb>] <= (<a, b>^2 + |a|^2 |b|^2) / buckets."""
    rng = np.random.Generator(np.random.Philox(6))
    a = rng.standard_normal(200)
    b = 0.5 * a + rng.standard_normal(200)
    spec = SketchSpec(ratio=0.1, kind="projection")
    rounds = 3000
    products = [
        float(spec.apply(t, {"w": a}).astype(np.float64) @ spec.apply(t, {"w": b}))
        for t in range(1, rounds + 1)
    ]
    bound = math.sqrt(((a @ b) ** 2 + (a @ a) * (b @ b)) / 20 / rounds)
    assert abs(np.mean(products) - a @ b) < 5 * bound
    assert a @ b > 20 * bound  # so that zero would not pass


def test_layers_by_name_and_by_pattern() -> None:
    assert list(SketchSpec(layers=("head",)).sizes(SHAPES)) == ["head"]
    assert list(SketchSpec(layers=("*a*", "conv")).sizes(SHAPES)) == ["bias", "conv", "head"]
    update = {name: np.ones(shape) for name, shape in SHAPES.items()}
    assert SketchSpec(ratio=0.5, layers=("b*",)).apply(1, update).shape == (2,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": 0.0}, "sketch ratio = 0.0: allowed are numbers in (0, 1]"),
        ({"ratio": 1.1}, "sketch ratio = 1.1: allowed are numbers in (0, 1]"),
        ({"ratio": -0.1}, "sketch ratio = -0.1: allowed are numbers in (0, 1]"),
        ({"ratio": math.nan}, "sketch ratio = nan: allowed are numbers in (0, 1]"),
        ({"kind": "top-k"}, "sketch kind = 'top-k': allowed are subsample, projection"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        SketchSpec(**options)


def test_a_layer_that_is_not_there_and_an_empty_model_are_named() -> None:
    with pytest.raises(ValueError, match="'tail' matches no array; there are conv, bias, head"):
        SketchSpec(layers=("head", "tail")).sizes(SHAPES)
    for shapes in ({}, {"w": (0, 3)}):
        with pytest.raises(ValueError, match="nothing to sketch"):
            SketchSpec().sizes(shapes)
