import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from simulation.shared_memory import SharedMemory, dump, load
from strategies.arrays import held, pack, view

ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(20, dtype=np.int64)[::3],
    np.zeros((0, 4), np.float32),
    np.array(2.5),
    np.array([True, False]),
]


def there_and_back(value: object, memory: SharedMemory) -> object:
    return load(dump(value, memory), memory)


@pytest.mark.parametrize("values", ARRAYS)
def test_arrays_come_back_as_they_were(values: NDArray[np.generic]) -> None:
    back = there_and_back(held(values), SharedMemory())
    assert isinstance(back, Array)
    assert (back.dtype, back.shape) == (str(values.dtype), values.shape)
    np.testing.assert_array_equal(back.numpy(), values)
    assert back.data == held(values).data


def test_one_array_is_written_once_and_read_once() -> None:
    memory = SharedMemory()
    record = pack({"x": np.ones(1000)})
    dumped = dump([record, pack({"y": np.ones(1000)}), record.copy()], memory)
    first, other, again = load(dumped, memory)
    assert view(first["x"]) is view(again["x"])
    assert view(other["y"]) is not view(first["x"])
    assert memory.write(view(record["x"])) == 0
    assert memory.write(np.ones(1)) < 3 * 8000


def test_what_was_read_stays_when_the_memory_is_written_again() -> None:
    memory = SharedMemory()
    before = there_and_back(pack({"x": np.zeros(10)}), memory)
    memory.clear()
    there_and_back(pack({"x": np.ones(10)}), memory)
    assert isinstance(before, ArrayRecord)
    np.testing.assert_array_equal(before["x"].numpy(), np.zeros(10))


def test_memory_grows_and_keeps_what_is_in_it() -> None:
    memory = SharedMemory()
    records = [pack({"x": np.full(100_000 * size, size)}) for size in range(1, 8)]
    for record, back in zip(records, load(dump(records, memory), memory), strict=True):
        assert back == record


def test_other_arrays_are_pickled() -> None:
    memory = SharedMemory()
    record = ArrayRecord({"x": Array(np.arange(3.0))})
    assert there_and_back(record, memory) == record
    assert memory.write(np.ones(1)) == 0
