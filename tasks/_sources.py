"""Where each data set comes from: found, read once, and kept in the cache."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks._arrays import LabelledArrays, checked
from tasks._cache import cache_dir, cached_arrays
from tasks._callables import load_callable, one_line
from tasks._images import fingerprint, hold_out, looks_like_images, read_images

__all__ = ["DATASETS", "NPZ_ARRAYS", "image_folder", "labelled_arrays", "npz_file"]

DATASETS = ("digits", "fashion-mnist", "cifar10", "cifar100", "image-folder", "npz")

NPZ_ARRAYS = ("x_train", "y_train", "x_test", "y_test")

_FASHION_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_FASHION_PACKAGE = Path("/usr/share/datasets/fashion-mnist")
_CIFAR_COPY = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}


@lru_cache(maxsize=4)
def labelled_arrays(name: str, data_dir: str, seed: int) -> LabelledArrays:
    """Return a data set by name, once per process; see `tasks.data.load_dataset`."""
    if ":" in name:
        return _users(name, data_dir)
    if name == "digits":
        return _cached({"dataset": name, "seed": seed}, lambda: _read_digits(seed))
    if name not in DATASETS:
        raise ValueError(f"dataset {name!r}: must be one of {', '.join(DATASETS)}, module:function")
    if data_dir and not Path(data_dir).exists():
        raise ValueError(f"data-dir {data_dir!r}: there is no such folder or file")
    if name == "fashion-mnist":
        return _fashion_mnist(data_dir)
    if name == "npz":
        if not data_dir:
            raise ValueError(
                f"dataset 'npz': set data-dir to an .npz file with {', '.join(NPZ_ARRAYS)}"
            )
        return npz_file(Path(data_dir), where=f"data-dir {data_dir!r}")
    if name == "image-folder":
        if not data_dir:
            raise ValueError(
                "dataset 'image-folder': set data-dir to a folder or zip of images, laid out as "
                "train/<class>/ and test/<class>/, or <class>/"
            )
        return image_folder(Path(data_dir), seed)
    return _cifar(name, data_dir, seed)


def npz_file(file: Path, *, where: str) -> LabelledArrays:
    """Return the four arrays of a `.npz`, named as Keras names them."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            missing = [name for name in NPZ_ARRAYS if name not in archive]
            if missing:
                raise ValueError(f"missing {', '.join(missing)}; it holds {', '.join(archive)}")
            arrays = [archive[name] for name in NPZ_ARRAYS]
    except Exception as error:  # zipfile, zlib and NumPy each raise their own
        reason = str(error) if type(error) is ValueError else one_line(error)
        raise ValueError(f"{where}: {reason}") from error
    return checked(*arrays, where=where)


def image_folder(path: Path, seed: int) -> LabelledArrays:
    """Return a folder or zip of images, decoded once; see `tasks._images.read_images`."""
    path = path.resolve()
    key: dict[str, object] = {"dataset": "image-folder", "source": fingerprint(path)}
    arrays = cached_arrays("datasets", key, lambda: read_images(path))
    if "x" not in arrays:  # it came with test data, so the seed has no part in it
        return _labelled(arrays)
    return _cached(key | {"seed": seed}, lambda: hold_out(arrays, str(path), seed=seed))


def _cached(key: dict[str, object], build: Any) -> LabelledArrays:
    return _labelled(cached_arrays("datasets", key, build))


def _labelled(arrays: dict[str, NDArray[Any]]) -> LabelledArrays:
    return LabelledArrays(
        arrays["x_train"],
        arrays["y_train"],
        arrays["x_test"],
        arrays["y_test"],
        int(arrays["num_classes"][0]),
    )


def _read_digits(seed: int) -> dict[str, NDArray[Any]]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    x = (digits.images[:, np.newaxis] / 16).astype(np.float32)  # values 0 to 16
    y = digits.target.astype(np.int64)
    rows = train_test_split(np.arange(len(y)), test_size=0.2, stratify=y, random_state=seed)
    train, test = (np.sort(part) for part in rows)
    return {
        "x_train": x[train],
        "y_train": y[train],
        "x_test": x[test],
        "y_test": y[test],
        "num_classes": np.array([10]),
    }


def _users(spec: str, data_dir: str) -> LabelledArrays:
    # Not kept on disk: nothing tells when what the function returns has changed.
    function = load_callable(spec, "dataset")
    try:
        returned = function(data_dir)
    except Exception as error:
        raise ValueError(f"dataset {spec!r}: the function failed: {one_line(error)}") from error
    try:
        if len(returned) == 2:  # as keras.datasets.*.load_data() returns it
            (x_train, y_train), (x_test, y_test) = returned
        else:
            x_train, y_train, x_test, y_test = returned
    except (TypeError, ValueError):
        raise ValueError(
            f"dataset {spec!r}: the function must return (x_train, y_train, x_test, y_test) or "
            f"((x_train, y_train), (x_test, y_test)), it returned {_outline(returned)}"
        ) from None
    return checked(x_train, y_train, x_test, y_test, where=f"dataset {spec!r}")


def _outline(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__


def _fashion_mnist(data_dir: str) -> LabelledArrays:
    places = [_FASHION_PACKAGE, cache_dir() / "downloads" / "FashionMNIST" / "raw"]
    if data_dir:
        places[:0] = [Path(data_dir), Path(data_dir, "FashionMNIST", "raw")]
    found = _first_fashion(places)
    if found is None:
        _download("FashionMNIST", _fashion_help(data_dir))
        found = _first_fashion(places)
        if found is None:
            raise ValueError(_fashion_help(data_dir))
    files = found
    stats = [[str(file.resolve()), file.stat().st_mtime_ns, file.stat().st_size] for file in files]
    return _cached(
        {"dataset": "fashion-mnist", "source": stats}, lambda: _read_fashion_mnist(files)
    )


def _first_fashion(places: list[Path]) -> list[Path] | None:
    for place in places:
        files = []
        for name in _FASHION_FILES:
            files += [p for p in (place / name, place / f"{name}.gz") if p.is_file()][:1]
        if len(files) == len(_FASHION_FILES):
            return files
    return None


def _fashion_help(data_dir: str) -> str:
    return (
        "dataset 'fashion-mnist' not found: put "
        f"{', '.join(f'{name}.gz' for name in _FASHION_FILES)} in data-dir "
        f"({data_dir or 'not set'}), or install the Debian package dataset-fashion-mnist"
    )


def _read_fashion_mnist(files: list[Path]) -> dict[str, NDArray[Any]]:
    from torchvision.datasets import FashionMNIST

    with tempfile.TemporaryDirectory() as root:
        raw = Path(root, "FashionMNIST", "raw")  # where torchvision looks, unpacked
        raw.mkdir(parents=True)
        try:
            for name, file in zip(_FASHION_FILES, files, strict=True):
                with (
                    gzip.open(file) if file.suffix == ".gz" else file.open("rb") as source,
                    open(raw / name, "wb") as unpacked,
                ):
                    shutil.copyfileobj(source, unpacked)
            parts = [FashionMNIST(root, train=train) for train in (True, False)]
        except Exception as error:
            raise ValueError(
                f"dataset 'fashion-mnist': cannot read the files in {files[0].parent}: "
                f"{one_line(error)}"
            ) from error
        (x_train, y_train), (x_test, y_test) = (
            (part.data.numpy()[:, np.newaxis], part.targets.numpy()) for part in parts
        )
    return {
        "x_train": x_train,
        "y_train": y_train.astype(np.int64),
        "x_test": x_test,
        "y_test": y_test.astype(np.int64),
        "num_classes": np.array([10]),
    }


def _cifar(name: str, data_dir: str, seed: int) -> LabelledArrays:
    if data_dir:
        given = Path(data_dir)
        for path in (given, given / f"{name}-images.zip", given / f"{name}-images"):
            if looks_like_images(path):
                return _with_classes(image_folder(path, seed), name, path)
    downloads = cache_dir() / "downloads"
    places = [Path(data_dir), downloads] if data_dir else [downloads]
    root = next((place for place in places if (place / _CIFAR_COPY[name]).is_dir()), None)
    if root is None:
        _download(name.upper(), _cifar_help(name, data_dir))
        root = downloads
    copy = (root / _CIFAR_COPY[name]).resolve()
    stats = [[str(f), f.stat().st_mtime_ns, f.stat().st_size] for f in sorted(copy.iterdir())]
    return _cached({"dataset": name, "source": stats}, lambda: _read_cifar(name, copy.parent))


def _with_classes(arrays: LabelledArrays, name: str, path: Path) -> LabelledArrays:
    expected = (int(name.removeprefix("cifar")), (3, 32, 32))
    if (arrays.num_classes, arrays.x_train.shape[1:]) != expected:
        raise ValueError(
            f"dataset {name!r}: {path} has {arrays.num_classes} classes and images of shape "
            f"{arrays.x_train.shape[1:]}, expected {expected[0]} and {expected[1]}"
        )
    return arrays


def _cifar_help(name: str, data_dir: str) -> str:
    return (
        f"dataset {name!r} not found: put {_CIFAR_COPY[name]}/ (torchvision's copy) or "
        f"{name}-images.zip (train/<class>/ and test/<class>/) in data-dir "
        f"({data_dir or 'not set'})"
    )


def _read_cifar(name: str, root: Path) -> dict[str, NDArray[Any]]:
    from torchvision import datasets

    try:
        parts = [getattr(datasets, name.upper())(root, train=train) for train in (True, False)]
    except Exception as error:
        raise ValueError(
            f"dataset {name!r}: cannot read {root / _CIFAR_COPY[name]}: {one_line(error)}"
        ) from error
    (x_train, y_train), (x_test, y_test) = (
        (np.ascontiguousarray(np.moveaxis(part.data, 3, 1)), np.array(part.targets, np.int64))
        for part in parts
    )
    return {
        "x_train": x_train,
        "y_train": y_train,
        "x_test": x_test,
        "y_test": y_test,
        "num_classes": np.array([int(name.removeprefix("cifar"))]),
    }


def _download(torchvision_name: str, otherwise: str) -> None:
    from filelock import FileLock
    from torchvision import datasets

    root = cache_dir() / "downloads"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{torchvision_name}.lock"):
            getattr(datasets, torchvision_name)(root, download=True)
    except Exception as error:  # no network, no such page, no space: all mean "not here"
        raise ValueError(
            f"{otherwise}; torchvision's download failed: {one_line(error)}"
        ) from error
