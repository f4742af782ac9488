import io
import pickle

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from strategies.arrays import array_bytes, held, lend, pack, view

DTYPES = st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_])
ANY_ARRAY = DTYPES.flatmap(lambda d: arrays(d, array_shapes(min_dims=0, max_dims=4, min_side=0)))


@given(ANY_ARRAY)
def test_is_what_flower_would_have_made(values: np.ndarray) -> None:  # type: ignore[type-arg]
    ours, theirs = held(values), Array(values)
    assert array_bytes(ours) == len(theirs.data) == array_bytes(theirs)
    assert (ours.dtype, ours.shape, ours.stype) == (theirs.dtype, theirs.shape, theirs.stype)
    assert ours.data == theirs.data
    assert ours == theirs
    assert theirs == ours
    assert ours.object_id == theirs.object_id
    np.testing.assert_array_equal(ours.numpy(), values)
    np.testing.assert_array_equal(view(theirs), values)


def test_nobody_can_change_what_another_reads() -> None:
    values = np.arange(4.0)
    array = held(values)
    values[0] = 9
    copy = array.numpy()
    copy[1] = 9
    np.testing.assert_array_equal(view(array), np.arange(4.0))
    with pytest.raises(ValueError, match="read-only"):
        view(array)[0] = 9


@given(ANY_ARRAY, st.booleans())
def test_flowers_own_are_viewed_without_a_copy(values: np.ndarray, fortran: bool) -> None:  # type: ignore[type-arg]
    theirs = Array(np.asfortranarray(values) if fortran else values)
    seen = view(theirs)
    np.testing.assert_array_equal(seen, values)
    assert seen.dtype == values.dtype
    assert not seen.size or np.shares_memory(seen, np.frombuffer(theirs.data, np.uint8))
    (lent,) = lend(ArrayRecord({"a": theirs})).values()
    assert lent.numpy() is view(lent)
    assert not lent.numpy().flags.writeable


@pytest.mark.parametrize(
    "data",
    [b"", b"\x93NUMPY", b"no file", Array(np.zeros(4)).data[:-8], Array(np.zeros(4)).data[:20]],
)
def test_what_is_no_file_of_an_array_cannot_be_viewed(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        view(Array("float64", (4,), "numpy.ndarray", data))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_files_of_every_version_are_viewed(version: tuple[int, int]) -> None:
    file, values = io.BytesIO(), np.arange(6.0).reshape(2, 3)
    np.lib.format.write_array(file, values, version)
    np.testing.assert_array_equal(
        view(Array("float64", (2, 3), "numpy.ndarray", file.getvalue())), values
    )


def test_objects_are_not_loaded() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects"):
        view(Array("object", (1,), "numpy.ndarray", file.getvalue()))


def test_values_and_bytes_share_their_memory() -> None:
    array = held(np.arange(6.0).reshape(2, 3))
    data = array.data
    assert np.shares_memory(view(array), np.frombuffer(data, np.uint8))
    np.testing.assert_array_equal(view(array), np.arange(6.0).reshape(2, 3))
    with pytest.raises(ValueError, match="read-only"):
        view(array)[0] = 9


def test_fortran_order_keeps_its_bytes() -> None:
    values = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    assert array_bytes(held(values)) == len(held(values).data)
    np.testing.assert_array_equal(Array(values).numpy(), held(values).numpy())


def test_travels_as_flowers_own() -> None:
    record = pack({"a": np.arange(3.0), "b": np.zeros((2, 2), np.float32)})
    theirs = ArrayRecord({name: Array(view(array)) for name, array in record.items()})
    received = pickle.loads(pickle.dumps(record))
    assert [type(array) for array in received.values()] == [Array, Array]
    assert received == theirs
    # What goes over the network: the same objects under the same ids.
    ours = get_all_nested_objects(RecordDict({"arrays": record}))
    assert ours.keys() == get_all_nested_objects(RecordDict({"arrays": theirs})).keys()
    for array in record.values():
        assert Array.inflate(array.deflate(), array.children) == array
