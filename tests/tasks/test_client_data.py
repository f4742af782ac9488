from __future__ import annotations

import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from tasks import _cache
from tasks import client_data as module
from tasks.client_data import ClientData, client_data, site_data
from tasks.data import load_dataset
from tasks.partition import PARTITIONERS, partition


def digits(partition_id: int = 0, num_partitions: int = 10, **changes: object) -> ClientData:
    arguments = {
        "dataset": "digits",
        "data_dir": "",
        "partitioner": "shards",
        "shards_per_client": 2,
        "alpha": 0.5,
        "seed": 0,
    } | changes
    return client_data(
        partition_id=partition_id,
        num_partitions=num_partitions,
        **arguments,  # type: ignore[arg-type]
    )


def same(a: ClientData, b: ClientData) -> bool:
    return a.num_classes == b.num_classes and all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("x_train", "y_train", "x_test", "y_test")
    )


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_a_client_has_its_rows_and_test_data_like_them(partitioner: str) -> None:
    whole = load_dataset("digits", seed=5)
    rows = partition(whole.y_train, partitioner, 10, seed=5)
    for i in (0, 4, 9):
        data = digits(i, partitioner=partitioner, seed=5)
        assert np.array_equal(data.x_train, whole.x_train[rows[i]])
        assert np.array_equal(data.y_train, whole.y_train[rows[i]])
        assert data.x_train.dtype == data.x_test.dtype == np.float32
        assert data.num_classes == 10
        share = np.bincount(data.y_train, minlength=10) / len(data.y_train)
        got = np.bincount(data.y_test, minlength=10)
        assert (abs(got - len(data.y_test) * share) < 1).all()
        pool = {image.tobytes() for image in whole.x_test}
        assert all(image.tobytes() in pool for image in data.x_test)


def test_arrays_are_read_only_and_loaded_once() -> None:
    data = digits()
    assert not any(
        a.flags.writeable for a in (data.x_train, data.y_train, data.x_test, data.y_test)
    )
    assert digits() is data


def test_what_a_partitioner_does_not_use_changes_nothing() -> None:
    assert digits(alpha=0.1) is digits(alpha=0.9)
    assert not same(digits(alpha=0.1, partitioner="dirichlet"), digits(partitioner="dirichlet"))
    assert not same(digits(shards_per_client=1), digits(shards_per_client=2))


def test_a_later_process_reads_the_same_without_heavy_libraries(cache: Path) -> None:
    here = digits(3)
    script = (
        "import sys, zlib\n"
        "from tasks.client_data import client_data\n"
        "import tasks.data, tasks.partition\n"
        "d = client_data('digits', '', 'shards', 3, 10, shards_per_client=2, alpha=0.5, seed=0)\n"
        "heavy = {'torch', 'torchvision', 'datasets', 'flwr_datasets', 'sklearn', 'scipy', 'PIL'}\n"
        "print(sorted(heavy & set(sys.modules)), zlib.crc32(d.x_train.tobytes()),"
        " zlib.crc32(d.x_test.tobytes()))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        env={"MUSTER_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    expected = f"[] {zlib.crc32(here.x_train.tobytes())} {zlib.crc32(here.x_test.tobytes())}"
    assert ran.stdout.strip() == expected


def test_another_cache_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: Callable[[], None]
) -> None:
    first = digits(2)
    forget()
    again = digits(2)
    forget()
    monkeypatch.setenv("MUSTER_CACHE_DIR", str(tmp_path / "new"))
    assert same(first, again)
    assert same(first, digits(2))


def test_clients_share_one_copy_on_disk(cache: Path) -> None:
    digits(0)
    before = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    for i in range(1, 10):
        digits(i)
    assert sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) == before


def test_a_damaged_cache_is_rebuilt(cache: Path, forget: Callable[[], None]) -> None:
    first = digits(2)
    forget()
    for file in cache.rglob("*.npy"):
        file.write_bytes(b"rubbish")
    assert same(first, digits(2))


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    one = sum(a.nbytes for a in (digits(0).x_train, digits(0).y_train))
    kept = module._Kept(5 * one)
    monkeypatch.setattr(module, "_kept", kept)
    seen = [digits(i) for i in range(10)]
    assert 0 < kept._bytes <= 5 * one
    assert 1 <= len(kept._items) < 10
    assert digits(9) is seen[9]
    assert digits(0) is not seen[0]
    assert same(digits(0), seen[0])


def test_a_users_data_is_split_by_what_it_is_now(
    monkeypatch: pytest.MonkeyPatch, forget: Callable[[], None]
) -> None:
    users = ModuleType("user_clients")
    monkeypatch.setitem(sys.modules, "user_clients", users)
    x = np.arange(40, dtype=np.float32).reshape(40, 1)
    for labels in (np.arange(40) // 20, np.arange(40) % 2):
        vars(users)["load"] = lambda _, y=labels: (x, y, x, y)
        forget()
        data = digits(0, 2, dataset="user_clients:load", shards_per_client=1)
        assert len(set(data.y_train.tolist())) == 1
        assert np.array_equal(labels[data.x_train[:, 0].astype(int)], data.y_train)


def test_an_unwritable_cache_does_not_stop_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: Callable[[], None]
) -> None:
    first = digits(1)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MUSTER_CACHE_DIR", str(tmp_path / "file"))
    forget()
    assert _cache.cache_dir() == tmp_path / "file"
    assert same(first, digits(1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition_id": 10}, "partition-id=10: must be from 0 to 9 (num-partitions=10)"),
        ({"partition_id": -1}, "partition-id=-1: must be from 0 to 9"),
        ({"dataset": "letters"}, "dataset 'letters': must be one of digits"),
        ({"partitioner": "random"}, "partitioner 'random': must be one of shards"),
        ({"shards_per_client": 0}, "shards-per-client=0: must be at least 1"),
        ({"alpha": -1.0}, "alpha=-1.0: must be a finite number above 0"),
        ({"num_partitions": 2000}, "2000 clients with shards-per-client=2 need at least 4000"),
    ],
)
def test_bad_arguments(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        digits(**changes)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


# A site's own data -------------------------------------------------------------------------------


def site_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 256, (9, 6, 5), dtype=np.uint8),
        "y_train": np.arange(9, dtype=np.uint8) % 3,
        "x_test": rng.integers(0, 256, (4, 6, 5), dtype=np.uint8),
        "y_test": np.arange(4) % 3,
    }


def test_site_npz(tmp_path: Path) -> None:
    arrays = site_arrays()
    np.savez(tmp_path / "site.npz", **arrays)  # type: ignore[arg-type]
    data = site_data(str(tmp_path / "site.npz"))
    assert np.array_equal(data.x_train, arrays["x_train"][:, np.newaxis] / np.float32(255))
    assert data.x_train.dtype == np.float32
    assert data.y_train.dtype == np.int64
    assert data.y_test.tolist() == [0, 1, 2, 0]
    assert data.num_classes == 3
    assert not data.x_train.flags.writeable
    assert site_data(str(tmp_path / "site.npz")) is data


def test_site_colour_and_floating_point(tmp_path: Path) -> None:
    arrays = site_arrays()
    for part in ("x_train", "x_test"):
        arrays[part] = np.stack([arrays[part]] * 3, axis=3)
    np.savez_compressed(tmp_path / "colour.npz", **arrays)  # type: ignore[arg-type]
    colour = site_data(str(tmp_path / "colour.npz"))
    assert colour.x_train.shape == (9, 3, 6, 5)
    for part in ("x_train", "x_test"):
        arrays[part] = arrays[part].astype(np.float64) - 100
    np.savez(tmp_path / "floats.npz", **arrays)  # type: ignore[arg-type]
    floats = site_data(str(tmp_path / "floats.npz"))
    assert np.array_equal(floats.x_train, arrays["x_train"].astype(np.float32))


def test_site_folder_of_images(tmp_path: Path) -> None:
    for folder in ("train/a", "train/b", "test/a", "test/b"):
        (tmp_path / folder).mkdir(parents=True)
        Image.new("L", (4, 4), 51).save(tmp_path / folder / "0.png")
    data = site_data(str(tmp_path))
    assert data.x_train.shape == (2, 1, 4, 4)
    assert np.allclose(data.x_train, 0.2)


def test_site_problems_name_the_file_and_what_is_missing(tmp_path: Path) -> None:
    def fails(path: Path, message: str) -> None:
        with pytest.raises(ValueError, match=re.escape(message)) as raised:
            site_data(str(path))
        assert str(path) in str(raised.value)
        assert "\n" not in str(raised.value)

    fails(tmp_path / "absent.npz", "cannot be read (No such file or directory); expected an .npz")
    (tmp_path / "text.csv").write_text("1,2")
    fails(tmp_path / "text.csv", "expected an .npz with x_train, y_train, x_test, y_test, or a")
    (tmp_path / "rubbish.npz").write_bytes(b"rubbish")
    fails(tmp_path / "rubbish.npz", "rubbish.npz: ")
    arrays = site_arrays()
    np.savez(tmp_path / "partly.npz", x_train=arrays["x_train"], other=arrays["y_train"])
    fails(tmp_path / "partly.npz", "missing y_train, x_test, y_test; it holds x_train, other")
    np.savez(tmp_path / "lengths.npz", **arrays | {"y_train": np.zeros(3, int)})  # type: ignore[arg-type]
    fails(tmp_path / "lengths.npz", "x_train has 9 rows and y_train has 3")
    objects = np.array([None] * 9, dtype=object)
    np.savez(tmp_path / "objects.npz", **arrays | {"y_train": objects})  # type: ignore[arg-type]
    fails(tmp_path / "objects.npz", "objects.npz: ")
    content = (tmp_path / "lengths.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[: len(content) // 2])
    fails(tmp_path / "cut.npz", "cut.npz: ")
    (tmp_path / "empty").mkdir()
    fails(tmp_path / "empty", "0 class folders, at least two needed")


def test_a_site_file_that_changes_is_read_again(tmp_path: Path) -> None:
    arrays = site_arrays()
    file = tmp_path / "site.npz"
    np.savez(file, **arrays)  # type: ignore[arg-type]
    first = site_data(str(file))
    np.savez(file, **arrays | {"y_test": np.array([2, 2, 2, 2])})  # type: ignore[arg-type]
    os.utime(file, ns=(0, 12345))
    assert site_data(str(file)).y_test.tolist() == [2, 2, 2, 2]
    assert first.y_test.tolist() == [0, 1, 2, 0]
