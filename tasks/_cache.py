"""Arrays kept on disk, so that a later process maps them instead of building them again.

An entry is a folder of `.npy` files and a manifest. It is written beside its final place and moved
there in one step, so a reader sees a whole entry or none.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["cache_dir", "cached_arrays"]

_FORMAT = 1  # raise it when what is built for a given key changes
_MANIFEST = "manifest.json"
# Reading larger arrays through would cost what mapping them saves; their header and size are
# checked all the same, which finds a truncated file.
_CHECKSUM_LIMIT = 1 << 20

_log = logging.getLogger(__name__)

Arrays = dict[str, NDArray[Any]]


def cache_dir() -> Path:
    """Return the cache folder: `$MUSTER_CACHE_DIR`, else `~/.cache/muster`; may not exist yet."""
    named = os.environ.get("MUSTER_CACHE_DIR")
    if named:
        return Path(named).absolute()
    try:
        return Path.home() / ".cache" / "muster"
    except RuntimeError:
        raise ValueError(
            "no home folder to keep the data cache in: set MUSTER_CACHE_DIR to a folder"
        ) from None


def cached_arrays(
    kind: str, key: Mapping[str, object], build: Callable[[], Mapping[str, NDArray[Any]]]
) -> Arrays:
    """Return the arrays stored under `key`, building and storing them if they are not there.

    Parameters
    ----------
    kind : str
        Sub-folder of the cache.
    key : mapping
        Everything the arrays depend on, JSON-ready.
    build : callable
        Makes the arrays, none of them empty. At most one process at a time runs it for one key.

    Returns
    -------
    dict of arrays, read-only. A stored entry is mapped, not read. A damaged entry is built again;
    a cache that cannot be written is reported and done without.
    """
    text = json.dumps({"format": _FORMAT, **key}, sort_keys=True)
    entry = cache_dir() / kind / hashlib.sha256(text.encode()).hexdigest()[:32]
    arrays = _read(entry)
    if arrays is not None:
        return arrays

    from filelock import FileLock

    lock = FileLock(f"{entry}.lock")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError) as error:
        _warn_unwritable(error)
        return _read_only(build())
    try:
        arrays = _read(entry)  # another process may have built it meanwhile
        if arrays is not None:
            return arrays
        built = _read_only(build())
        try:
            _write(entry, text, built)
        except OSError as error:
            _warn_unwritable(error)
            return built
        return _read(entry) or built
    finally:
        lock.release()


def _read(entry: Path) -> Arrays | None:
    if not entry.is_dir():
        return None
    try:
        manifest = json.loads((entry / _MANIFEST).read_text())
        arrays: Arrays = {}
        for name, stored in manifest["arrays"].items():
            mapped = np.load(entry / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            array: NDArray[Any] = mapped.view(np.ndarray)
            if _describe(array) != stored:
                raise ValueError(f"{name}.npy is not what the manifest says")
            arrays[name] = array
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        _log.warning("cache entry %s is damaged and will be built again: %s", entry, error)
        return None
    return arrays


def _write(entry: Path, key: str, arrays: Arrays) -> None:
    staging = Path(tempfile.mkdtemp(dir=entry.parent, prefix=".new-"))
    try:
        for name, array in arrays.items():
            with open(staging / f"{name}.npy", "wb") as file:
                np.save(file, array, allow_pickle=False)
                _flush(file.fileno(), file.flush)
        described = {name: _describe(array) for name, array in arrays.items()}
        with open(staging / _MANIFEST, "w") as manifest:
            json.dump({"key": json.loads(key), "arrays": described}, manifest)
            _flush(manifest.fileno(), manifest.flush)
        if entry.exists():  # damaged: a folder can only be moved onto an empty place
            discarded = tempfile.mkdtemp(dir=entry.parent, prefix=".old-")
            os.replace(entry, discarded)
            shutil.rmtree(discarded, ignore_errors=True)
        os.replace(staging, entry)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _flush(descriptor: int, flush: Callable[[], None]) -> None:
    # Without it a power cut may leave a complete folder of empty files.
    flush()
    os.fsync(descriptor)


def _describe(array: NDArray[Any]) -> dict[str, object]:
    described: dict[str, object] = {"shape": list(array.shape), "dtype": array.dtype.str}
    if array.nbytes <= _CHECKSUM_LIMIT:
        described["crc32"] = zlib.crc32(array.tobytes())
    return described


def _read_only(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    for array in arrays.values():
        array.setflags(write=False)
    return dict(arrays)


def _warn_unwritable(error: BaseException) -> None:
    _log.warning(
        "the data cache cannot be written, so every process builds its data again: %s "
        "(set MUSTER_CACHE_DIR to a writable folder)",
        error,
    )
