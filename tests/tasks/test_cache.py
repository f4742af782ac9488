from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tasks import _cache
from tasks._cache import Arrays, cached_arrays

BIG = np.arange(300_000, dtype=np.float64)  # above the size that is checksummed
SMALL = np.array([[1, 2], [3, 4]], dtype=np.int64)


class Builder:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Arrays:
        self.calls += 1
        return {"big": BIG.copy(), "small": SMALL.copy()}


def check(arrays: Arrays) -> None:
    assert np.array_equal(arrays["big"], BIG)
    assert np.array_equal(arrays["small"], SMALL)
    assert not any(array.flags.writeable for array in arrays.values())


def entry_of(cache: Path) -> Path:
    (entry,) = (path for path in (cache / "kind").iterdir() if path.is_dir())
    return entry


def test_built_once_for_a_key(cache: Path) -> None:
    build = Builder()
    for _ in range(3):
        check(cached_arrays("kind", {"a": 1}, build))
    assert build.calls == 1
    check(cached_arrays("kind", {"a": 2}, build))
    assert build.calls == 2


def test_nothing_but_entries_and_locks_is_left(cache: Path) -> None:
    cached_arrays("kind", {"a": 1}, Builder())
    entry = entry_of(cache)
    assert {path.name for path in entry.parent.iterdir()} <= {entry.name, f"{entry.name}.lock"}


def truncate(entry: Path) -> None:
    content = (entry / "big.npy").read_bytes()
    (entry / "big.npy").write_bytes(content[: len(content) // 2])


def flip(entry: Path) -> None:
    content = bytearray((entry / "small.npy").read_bytes())
    content[-1] ^= 1
    (entry / "small.npy").write_bytes(content)


def blank(entry: Path) -> None:
    (entry / "big.npy").write_bytes(bytes((entry / "big.npy").stat().st_size))


def other(entry: Path) -> None:
    np.save(entry / "big.npy", BIG.astype(np.float32))


def lose(entry: Path) -> None:
    (entry / "small.npy").unlink()


def empty(entry: Path) -> None:
    (entry / "big.npy").write_bytes(b"")


def no_manifest(entry: Path) -> None:
    (entry / "manifest.json").unlink()


def bad_manifest(entry: Path) -> None:
    (entry / "manifest.json").write_text("[1")


def strange_manifest(entry: Path) -> None:
    (entry / "manifest.json").write_text("[1]")


@pytest.mark.parametrize(
    "damage",
    [truncate, flip, blank, other, lose, empty, no_manifest, bad_manifest, strange_manifest],
)
def test_damage_is_noticed_and_repaired(
    damage: Callable[[Path], None], cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build = Builder()
    cached_arrays("kind", {"a": 1}, build)
    damage(entry_of(cache))
    with caplog.at_level(logging.WARNING):
        check(cached_arrays("kind", {"a": 1}, build))
    assert build.calls == 2
    assert "damaged" in caplog.text
    check(cached_arrays("kind", {"a": 1}, build))
    assert build.calls == 2


def test_an_older_format_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    build = Builder()
    cached_arrays("kind", {"a": 1}, build)
    monkeypatch.setattr(_cache, "_FORMAT", _cache._FORMAT + 1)
    cached_arrays("kind", {"a": 1}, build)
    assert build.calls == 2


def test_writers_at_the_same_time_build_once() -> None:
    build = Builder()
    start = threading.Barrier(6)
    results: list[Arrays] = []

    def work() -> None:
        start.wait()
        results.append(cached_arrays("kind", {"a": 1}, build))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    for arrays in results:
        check(arrays)
    assert build.calls == 1


def test_a_failing_build_leaves_nothing(cache: Path) -> None:
    def build() -> Arrays:
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        cached_arrays("kind", {"a": 1}, build)
    assert not [path for path in (cache / "kind").iterdir() if path.is_dir()]
    check(cached_arrays("kind", {"a": 1}, Builder()))


def test_without_a_writable_cache_the_arrays_are_built_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MUSTER_CACHE_DIR", str(tmp_path / "file"))
    build = Builder()
    with caplog.at_level(logging.WARNING):
        check(cached_arrays("kind", {"a": 1}, build))
    assert "set MUSTER_CACHE_DIR to a writable folder" in caplog.text
    check(cached_arrays("kind", {"a": 1}, build))
    assert build.calls == 2


def test_a_full_disk_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with caplog.at_level(logging.WARNING):
        check(cached_arrays("kind", {"a": 1}, Builder()))
    assert "No space left" in caplog.text


def test_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MUSTER_CACHE_DIR")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert _cache.cache_dir() == tmp_path / ".cache" / "muster"

    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ValueError, match="set MUSTER_CACHE_DIR to a folder"):
        _cache.cache_dir()
