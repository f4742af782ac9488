"""Images in folders named by class, in a directory or a zip, decoded into arrays."""

from __future__ import annotations

import io
import os
import threading
import zipfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks._callables import one_line

__all__ = ["fingerprint", "hold_out", "looks_like_images", "read_images"]

_SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_LAYOUT = "expected train/<class>/ and test/<class>/, or <class>/, with images in them"


@dataclass(frozen=True)
class _Tree:
    files: dict[str, list[str]]  # class folder -> names of its images, both sorted
    read: Callable[[str], bytes]


def looks_like_images(path: Path) -> bool:
    """Tell whether `path` is a zip, or a folder with `train` and `test` in it."""
    if path.is_file():
        return zipfile.is_zipfile(path)
    return (path / "train").is_dir() and (path / "test").is_dir()


def fingerprint(path: Path) -> list[object]:
    """Return what changes when images are added or removed (or the zip is replaced), JSON-ready.

    A folder's own time stands for the files in it, since looking at each takes long; an image
    overwritten in place goes unnoticed.
    """
    if path.is_file():
        stat = path.stat()
        return [str(path), stat.st_mtime_ns, stat.st_size]
    folders = [path]
    for _ in range(2):
        folders += [
            Path(entry) for folder in folders for entry in os.scandir(folder) if entry.is_dir()
        ]
    return [[str(folder), folder.stat().st_mtime_ns] for folder in sorted(set(folders))]


def read_images(path: Path) -> dict[str, NDArray[Any]]:
    """Decode a folder or zip of images.

    Classes are numbered in the order of their names, as torchvision's `ImageFolder` does. Images
    are grey if all of them are and RGB otherwise.

    Returns
    -------
    dict of `x_train`, `x_test`: (n, C, H, W) uint8; `y_train`, `y_test`: (n,) int64; `num_classes`:
    (1,) int64. With one level of folders, `x` and `y` instead of the first four (see `hold_out`).

    Raises
    ------
    ValueError
        If the layout is another, a class folder of `test` is not in `train`, an image cannot be
        read, or their sizes differ.
    """
    if path.is_file() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return _read_tree(_zip_tree(archive), str(path))
    if path.is_dir():
        return _read_tree(_folder_tree(path), str(path))
    raise ValueError(f"{path}: not a folder or a zip of images; {_LAYOUT}")


def _read_tree(tree: _Tree, where: str) -> dict[str, NDArray[Any]]:
    two_level = {PurePosixPath(folder).parts[0] for folder in tree.files if "/" in folder}
    if {"train", "test"} <= two_level:
        classes = _classes(tree, "train/")
        unknown = sorted(set(_classes(tree, "test/")) - set(classes))
        if unknown:
            raise ValueError(f"{where}: class {unknown[0]!r} is in test/ but not in train/")
        train, y_train = _listed(tree, "train/", classes)
        test, y_test = _listed(tree, "test/", classes)
        if not train or not test:
            raise ValueError(f"{where}: no images in {'train/' if not train else 'test/'}")
    else:
        if two_level & {"train", "test"}:
            missing = "test" if "train" in two_level else "train"
            raise ValueError(f"{where}: there is no {missing}/ folder; {_LAYOUT}")
        classes = _classes(tree, "")
        train, y_train = _listed(tree, "", classes)
        test = []
    if len(classes) < 2:
        raise ValueError(f"{where}: {len(classes)} class folders, at least two needed; {_LAYOUT}")
    x = _decode(tree, [*train, *test], where)
    arrays = {"num_classes": np.array([len(classes)])}
    if not test:
        return arrays | {"x": x, "y": y_train}
    n = len(train)
    return arrays | {"x_train": x[:n], "y_train": y_train, "x_test": x[n:], "y_test": y_test}


def hold_out(arrays: dict[str, NDArray[Any]], where: str, *, seed: int) -> dict[str, NDArray[Any]]:
    """Split what `read_images` returns of one level of folders: a fifth of each class is for tests.

    Raises
    ------
    ValueError
        If a class has too few images.
    """
    from sklearn.model_selection import train_test_split

    x, y = arrays["x"], arrays["y"]
    try:
        split = train_test_split(np.arange(len(y)), test_size=0.2, stratify=y, random_state=seed)
    except ValueError as error:
        raise ValueError(
            f"{where}: too few images to hold out a fifth of each class for testing; add images or "
            f"train/ and test/ folders ({one_line(error)})"
        ) from error
    train, test = (np.sort(rows) for rows in split)
    return {
        "x_train": x[train],
        "y_train": y[train],
        "x_test": x[test],
        "y_test": y[test],
        "num_classes": arrays["num_classes"],
    }


def _classes(tree: _Tree, prefix: str) -> list[str]:
    names = [folder.removeprefix(prefix) for folder in tree.files if folder.startswith(prefix)]
    return sorted(name for name in names if name and "/" not in name)


def _listed(tree: _Tree, prefix: str, classes: list[str]) -> tuple[list[str], NDArray[np.int64]]:
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = tree.files.get(prefix + name, [])
        files += found
        labels += [label] * len(found)
    return files, np.array(labels, dtype=np.int64)


def _zip_tree(archive: zipfile.ZipFile) -> _Tree:
    return _tree(archive.namelist(), archive.read)


def _folder_tree(root: Path) -> _Tree:
    def names() -> Iterable[str]:
        for folder, _, files in os.walk(root):
            relative = Path(folder).relative_to(root)
            yield f"{relative.as_posix()}/"
            for file in files:
                yield (relative / file).as_posix()

    return _tree(names(), lambda name: (root / name).read_bytes())


def _tree(names: Iterable[str], read: Callable[[str], bytes]) -> _Tree:
    files: dict[str, list[str]] = {}
    for name in names:
        path = PurePosixPath(name)
        if any(part.startswith((".", "__MACOSX")) for part in path.parts):
            continue
        if name.endswith("/"):
            if path.parts:
                files.setdefault(str(path), [])
        elif path.suffix.lower() in _SUFFIXES and len(path.parts) > 1:
            files.setdefault(str(path.parent), []).append(name)
    # Folders that only hold folders are no classes.
    parents = {str(parent) for folder in files for parent in PurePosixPath(folder).parents}
    return _Tree({f: sorted(files[f]) for f in sorted(files) if files[f] or f not in parents}, read)


def _decode(tree: _Tree, files: list[str], where: str) -> NDArray[np.uint8]:
    from PIL import Image

    lock = threading.Lock()

    def decode(name: str) -> NDArray[np.uint8]:
        with lock:
            content = tree.read(name)
        try:
            with Image.open(io.BytesIO(content)) as image:
                grey = image.mode in ("1", "L")
                return np.asarray(image.convert("L" if grey else "RGB"))
        except (OSError, ValueError, SyntaxError) as error:
            raise ValueError(f"{where}: cannot read {name}: {one_line(error)}") from error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        images = list(pool.map(decode, files, chunksize=64))
    size = images[0].shape[:2]
    channels = max(1 if image.ndim == 2 else 3 for image in images)
    x = np.empty((len(images), channels, *size), np.uint8)
    for row, (name, image) in enumerate(zip(files, images, strict=True)):
        if image.shape[:2] != size:
            raise ValueError(
                f"{where}: {name} is {image.shape[0]}×{image.shape[1]} pixels, {files[0]} is "
                f"{size[0]}×{size[1]}, all images must have one size"
            )
        x[row] = image if image.ndim == 2 else np.moveaxis(image, 2, 0)
    return x
