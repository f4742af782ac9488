from __future__ import annotations

import gzip
import pickle
import random
import re
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tasks import _sources
from tasks.data import Dataset, load_dataset, load_test_data


def check_dataset(data: Dataset) -> None:
    for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        assert x.dtype == np.float32
        assert y.dtype == np.int64
        assert len(x) == len(y) > 0
        assert 0 <= y.min() <= y.max() < data.num_classes


def test_digits_are_scikit_learns_split_by_class() -> None:
    data = load_dataset("digits")
    check_dataset(data)
    source = load_digits()
    ours = np.concatenate([data.x_train, data.x_test]).reshape(-1, 64) * 16
    order = np.lexsort(ours.T)
    assert np.array_equal(ours[order], source.data[np.lexsort(source.data.T)])
    assert data.x_train.shape[1:] == (1, 8, 8)
    assert data.num_classes == 10
    whole = np.bincount(source.target)
    assert (abs(np.bincount(data.y_test) - whole / 5) <= 1).all()


def test_the_seed_decides_the_digits_held_out() -> None:
    first, second = load_dataset("digits", seed=1), load_dataset("digits", seed=2)
    assert np.array_equal(first.x_test, load_dataset("digits", seed=1).x_test)
    assert not np.array_equal(first.x_test, second.x_test)


def test_global_random_state_is_left_alone() -> None:
    before_python, before_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    load_dataset("digits", seed=1)
    after_numpy = np.random.get_state()  # noqa: NPY002
    assert random.getstate() == before_python
    assert all(np.array_equal(a, b) for a, b in zip(before_numpy, after_numpy, strict=True))


def test_the_test_part_alone_is_the_same(forget: Callable[[], None]) -> None:
    whole = load_dataset("digits", seed=4)
    forget()
    part = load_test_data("digits", seed=4)
    assert np.array_equal(part.x_test, whole.x_test)
    assert np.array_equal(part.y_test, whole.y_test)
    assert part.num_classes == 10


# Fashion-MNIST -----------------------------------------------------------------------------------


def write_idx(folder: Path, *, zipped: bool) -> dict[str, np.ndarray]:
    """Write a small data set in the files of Fashion-MNIST."""
    rng = np.random.default_rng(0)
    written = {}
    folder.mkdir(parents=True, exist_ok=True)
    for part, n in (("train", 30), ("t10k", 12)):
        images = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = (np.arange(n) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            content = header + array.tobytes()
            name = f"{part}-{kind}-ubyte"
            if zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
            written[f"{part}-{kind}"] = array
    return written


@pytest.mark.parametrize("where", ["", "FashionMNIST/raw"])
@pytest.mark.parametrize("zipped", [True, False])
def test_fashion_mnist_files(where: str, zipped: bool, tmp_path: Path) -> None:
    written = write_idx(tmp_path / where, zipped=zipped)
    data = load_dataset("fashion-mnist", str(tmp_path))
    check_dataset(data)
    assert np.array_equal(
        data.x_train, written["train-images-idx3"][:, np.newaxis] / np.float32(255)
    )
    assert np.array_equal(data.y_test, written["t10k-labels-idx1"])
    assert data.num_classes == 10


def test_fashion_mnist_that_cannot_be_read(tmp_path: Path) -> None:
    write_idx(tmp_path, zipped=True)
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match="cannot read the files in") as raised:
        load_dataset("fashion-mnist", str(tmp_path))
    assert "\n" not in str(raised.value)


def test_changed_files_are_read_again(tmp_path: Path, forget: Callable[[], None]) -> None:
    write_idx(tmp_path, zipped=False)
    first = load_dataset("fashion-mnist", str(tmp_path))
    file = tmp_path / "train-labels-idx1-ubyte"
    content = bytearray(file.read_bytes())
    content[8] = 9
    file.write_bytes(content)
    forget()
    second = load_dataset("fashion-mnist", str(tmp_path))
    assert first.y_train[0] == 0
    assert second.y_train[0] == 9


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torchvision

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("Error downloading x:\nno network")

    for name in ("FashionMNIST", "CIFAR10", "CIFAR100"):
        monkeypatch.setattr(torchvision.datasets, name, fails)
    monkeypatch.setattr(_sources, "_FASHION_PACKAGE", tmp_path / "absent")


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "fashion-mnist",
            "dataset 'fashion-mnist' not found: put train-images-idx3-ubyte.gz, "
            "train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz in "
            "data-dir (not set), or install the Debian package dataset-fashion-mnist",
        ),
        ("cifar10", "put cifar-10-batches-py/ (torchvision's copy) or cifar10-images.zip"),
        ("cifar100", "put cifar-100-python/ (torchvision's copy) or cifar100-images.zip"),
    ],
)
def test_data_not_found_says_which_file_goes_where(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        load_dataset(name)
    assert "\n" not in str(raised.value)
    assert "torchvision's download failed: RuntimeError: Error downloading x" in str(raised.value)


@pytest.mark.slow
def test_debian_package() -> None:
    if not _sources._FASHION_PACKAGE.is_dir():
        pytest.skip("the Debian package dataset-fashion-mnist is not installed")
    data = load_dataset("fashion-mnist")
    check_dataset(data)
    assert data.x_train.shape == (60_000, 1, 28, 28)
    assert np.bincount(data.y_train).tolist() == [6_000] * 10
    assert np.bincount(data.y_test).tolist() == [1_000] * 10


# CIFAR -------------------------------------------------------------------------------------------


def test_cifar10_as_torchvision_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision

    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    rng = np.random.default_rng(0)
    batch = {"data": rng.integers(0, 256, (20, 3072), dtype=np.uint8), "labels": [1, 9] * 10}
    for name in ("data_batch_1", "test_batch"):
        (folder / name).write_bytes(pickle.dumps(batch))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    # Its checksums are those of the real files.
    cifar = torchvision.datasets.CIFAR10
    monkeypatch.setattr(cifar, "train_list", [["data_batch_1", None]])
    monkeypatch.setattr(cifar, "test_list", [["test_batch", None]])
    monkeypatch.setitem(cifar.meta, "md5", None)
    data = load_dataset("cifar10", str(tmp_path))
    check_dataset(data)
    assert np.array_equal(
        data.x_train,
        batch["data"].reshape(20, 3, 32, 32) / np.float32(255),  # type: ignore[attr-defined]
    )
    assert data.y_test.tolist() == batch["labels"]


def test_cifar_copy_that_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    with pytest.raises(ValueError, match=r"dataset 'cifar100': cannot read .*cifar-100-python"):
        load_dataset("cifar100", str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_cifar_from_a_zip_of_images(name: str, classes: int, image_zips: Path) -> None:
    data = load_dataset(name, str(image_zips))
    check_dataset(data)
    assert data.x_train.shape == (50_000, 3, 32, 32)
    assert np.bincount(data.y_train).tolist() == [50_000 // classes] * classes
    assert np.bincount(data.y_test).tolist() == [10_000 // classes] * classes
    # The mean colour of CIFAR-10's training images, as published with many of its models.
    if name == "cifar10":
        mean = data.x_train.mean(axis=(0, 2, 3))
        assert np.allclose(mean, [0.4914, 0.4822, 0.4465], atol=1e-3)


# Folders of images -------------------------------------------------------------------------------


def write_images(
    root: Path, folders: dict[str, int], *, size: tuple[int, int] = (5, 4), mode: str = "RGB"
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    written = {}
    for folder, n in folders.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for i in range(n):
            shape = (*size, 3) if mode == "RGB" else size
            pixels = rng.integers(0, 256, shape, dtype=np.uint8)
            Image.fromarray(pixels).save(root / folder / f"{i:03}.png")
            written[f"{folder}/{i:03}.png"] = pixels
    return written


def zip_folder(folder: Path, to: Path) -> Path:
    with zipfile.ZipFile(to, "w") as archive:
        for path in sorted(folder.rglob("*"), reverse=True):
            archive.write(path, path.relative_to(folder))
    return to


TWO_LEVEL = {"train/cat": 6, "train/ant": 5, "test/ant": 2, "test/cat": 3}


@pytest.mark.parametrize("as_zip", [False, True])
def test_two_levels(as_zip: bool, tmp_path: Path) -> None:
    source = tmp_path / "images"
    written = write_images(source, TWO_LEVEL)
    (source / "train" / "cat" / "notes.txt").write_text("no image")
    (source / "train" / "cat" / ".hidden.png").write_text("no image")
    if as_zip:
        source = zip_folder(source, tmp_path / "images.zip")
    data = load_dataset("image-folder", str(source))
    check_dataset(data)
    assert data.num_classes == 2
    assert data.y_train.tolist() == [0] * 5 + [1] * 6
    assert data.y_test.tolist() == [0] * 2 + [1] * 3
    pixels = np.moveaxis(written["train/cat/002.png"], 2, 0)
    assert np.array_equal(data.x_train[5 + 2], pixels / np.float32(255))


def test_numbered_as_torchvision_does(tmp_path: Path) -> None:
    import torchvision

    write_images(tmp_path, TWO_LEVEL | {"train/Bee": 3, "train/bat": 2})
    folder = torchvision.datasets.ImageFolder(tmp_path / "train")
    data = load_dataset("image-folder", str(tmp_path))
    assert data.y_train.tolist() == folder.targets
    ours = (data.x_train * 255).round().astype(np.uint8)
    theirs = [np.moveaxis(np.asarray(image), 2, 0) for image, _ in folder]
    assert np.array_equal(ours, np.stack(theirs))


@pytest.mark.parametrize("as_zip", [False, True])
def test_one_level_holds_out_a_fifth_of_each_class(as_zip: bool, tmp_path: Path) -> None:
    source = tmp_path / "images"
    write_images(source, {"a": 20, "b": 10})
    if as_zip:
        source = zip_folder(source, tmp_path / "images.zip")
    data = load_dataset("image-folder", str(source), seed=3)
    check_dataset(data)
    assert np.bincount(data.y_train).tolist() == [16, 8]
    assert np.bincount(data.y_test).tolist() == [4, 2]
    other = load_dataset("image-folder", str(source), seed=4)
    assert not np.array_equal(data.x_test, other.x_test)


def test_images_with_test_data_are_decoded_once_for_all_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path, TWO_LEVEL)
    first = load_dataset("image-folder", str(tmp_path), seed=1)
    monkeypatch.setattr(_sources, "read_images", None)
    second = load_dataset("image-folder", str(tmp_path), seed=2)
    assert np.array_equal(first.x_test, second.x_test)


def test_a_class_without_images_keeps_its_number(tmp_path: Path) -> None:
    write_images(tmp_path, TWO_LEVEL | {"train/bee": 0})
    data = load_dataset("image-folder", str(tmp_path))
    assert data.num_classes == 3
    assert set(data.y_train.tolist()) == {0, 2}


def test_grey_images_have_one_channel_unless_others_have_colour(
    tmp_path: Path, forget: Callable[[], None]
) -> None:
    grey = write_images(tmp_path, TWO_LEVEL, mode="L")
    data = load_dataset("image-folder", str(tmp_path))
    assert data.x_train.shape == (11, 1, 5, 4)
    write_images(tmp_path, {"train/dog": 1, "test/dog": 1})
    forget()
    data = load_dataset("image-folder", str(tmp_path))
    assert data.x_train.shape == (12, 3, 5, 4)
    pixels = grey["train/ant/000.png"] / np.float32(255)
    assert all(np.array_equal(channel, pixels) for channel in data.x_train[0])


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ({"train/a": 2, "train/b": 2}, "there is no test/ folder; expected train/<class>/"),
        ({"train/a": 2, "train/b": 2, "test/a": 0}, "no images in test/"),
        ({"train/a": 2, "train/b": 2, "test/c": 1}, "class 'c' is in test/ but not in train/"),
        ({"train/a": 2, "test/a": 2}, "1 class folders, at least two needed"),
        ({"a": 5}, "1 class folders, at least two needed"),
        ({}, "0 class folders, at least two needed"),
        ({"a": 1, "b": 9}, "too few images to hold out a fifth of each class"),
    ],
)
def test_bad_layouts(folders: dict[str, int], message: str, tmp_path: Path) -> None:
    write_images(tmp_path, folders)
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path}: {message}")) as raised:
        load_dataset("image-folder", str(tmp_path))
    assert "\n" not in str(raised.value)


def test_bad_images(tmp_path: Path) -> None:
    write_images(tmp_path, TWO_LEVEL)
    (tmp_path / "train" / "ant" / "x.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"cannot read train/ant/x.png: "):
        load_dataset("image-folder", str(tmp_path))
    Image.new("RGB", (9, 7)).save(tmp_path / "train" / "ant" / "x.png")
    with pytest.raises(
        ValueError, match=r"train/ant/x.png is 7×9 pixels, train/ant/000.png is 5×4"
    ):
        load_dataset("image-folder", str(tmp_path))


def test_no_folder_of_images(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dataset 'image-folder': set data-dir"):
        load_dataset("image-folder")
    (tmp_path / "file.txt").write_text("x")
    with pytest.raises(ValueError, match=r"file.txt: not a folder or a zip of images"):
        load_dataset("image-folder", str(tmp_path / "file.txt"))


def test_cifar_from_other_images(tmp_path: Path) -> None:
    write_images(tmp_path, TWO_LEVEL)
    with pytest.raises(ValueError, match=re.escape("has 2 classes and images of shape (3, 5, 4)")):
        load_dataset("cifar10", str(tmp_path))


# A user's function -------------------------------------------------------------------------------


def arrays(**changes: object) -> tuple[object, ...]:
    rng = np.random.default_rng(0)
    made: dict[str, object] = {
        "x_train": rng.normal(size=(12, 5)),
        "y_train": np.arange(12) % 3,
        "x_test": rng.normal(size=(6, 5)),
        "y_test": np.arange(6) % 3,
    }
    return tuple((made | changes).values())


@pytest.fixture
def returns(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    module = ModuleType("user_data")
    monkeypatch.setitem(sys.modules, "user_data", module)

    def set_result(result: object) -> None:
        def load(data_dir: str) -> object:
            if isinstance(result, Exception):
                raise result
            vars(module)["data_dir"] = data_dir
            return result

        vars(module)["load"] = load

    return set_result


def test_users_function(returns: Callable[[object], None]) -> None:
    x_train, y_train, x_test, y_test = flat = arrays()
    returns(flat)
    data = load_dataset("user_data:load", "some/place")
    check_dataset(data)
    assert np.array_equal(data.x_train, np.asarray(x_train, np.float32))
    assert data.num_classes == 3
    assert sys.modules["user_data"].data_dir == "some/place"
    returns(((x_train, y_train), (x_test, y_test)))
    nested = load_dataset("user_data:load", "another place")
    assert np.array_equal(nested.x_test, data.x_test)
    assert all(a.flags.writeable for a in flat)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("shape", "channels_first"),
    [
        ((5, 4), lambda x: x[:, np.newaxis]),
        ((5, 4, 3), lambda x: np.transpose(x, (0, 3, 1, 2))),
        ((5, 4, 1), lambda x: x.reshape(12, 1, 5, 4)),
        ((3, 5, 6), lambda x: x),
        ((20,), lambda x: x),
    ],
)
def test_users_images(
    shape: tuple[int, ...],
    channels_first: Callable[[np.ndarray], np.ndarray],
    returns: Callable[[object], None],
) -> None:
    x = np.random.default_rng(0).integers(0, 256, (12, *shape), dtype=np.uint8)
    labels = (np.arange(12) % 3)[:, np.newaxis]  # as Keras returns CIFAR's
    returns(((x, labels), (x, labels)))
    data = load_dataset("user_data:load")
    assert np.array_equal(data.x_train, channels_first(x) / np.float32(255))
    assert data.y_train.shape == (12,)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (RuntimeError("no\nfile"), "the function failed: RuntimeError: no"),
        (None, "it returned NoneType"),
        ((1, 2, 3), "it returned a tuple of 3"),
        ((1, 2), "it returned a tuple of 2"),
        (arrays(x_train=np.ones((11, 5))), "x_train has 11 rows and y_train has 12"),
        (arrays(x_train=np.ones(12)), "x_train has shape (12,), expected (n, ...)"),
        (arrays(x_test=np.ones((0, 5))), "x_test has shape (0, 5), expected (n, ...) with at"),
        (arrays(x_test=np.ones((6, 4))), "x_train is float32 (5,), of x_test float32 (4,)"),
        (arrays(x_train=np.ones((12, 5), int)), "x_train has dtype int64, expected uint8"),
        (
            arrays(x_train=np.ones((12, 5, 6, 7), np.uint8)),
            "x_train has shape (12, 5, 6, 7), expected uint8 images as (n, H, W), (n, H, W, C) or",
        ),
        (arrays(x_train=np.full((12, 5), np.nan)), "x_train has values that are not finite"),
        (arrays(x_train=np.full((12, 5), 1e300)), "x_train has values that are not finite"),
        (arrays(y_train=np.ones(12)), "y_train has dtype float64, expected integers"),
        (arrays(y_train=np.eye(12, dtype=int)), "y_train has shape (12, 12), expected (n,)"),
        (arrays(y_test=np.arange(6) - 1), "y_test has the label -1, labels count from 0"),
        (arrays(y_train=np.zeros(12, int), y_test=np.zeros(6, int)), "every label is 0"),
    ],
)
def test_bad_results(result: object, message: str, returns: Callable[[object], None]) -> None:
    returns(result)
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        load_dataset("user_data:load")
    assert str(raised.value).startswith("dataset 'user_data:load': ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "data_dir", "message"),
    [
        ("mnist", "", "dataset 'mnist': must be one of digits, fashion-mnist, cifar10, cifar100"),
        ("cifar10", "absent", "data-dir 'absent': there is no such folder or file"),
        ("nowhere:f", "", "dataset 'nowhere:f': cannot import module 'nowhere': ModuleNotFound"),
        ("json:nothing", "", "module 'json' has no function 'nothing'"),
    ],
)
def test_bad_names(name: str, data_dir: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        load_dataset(name, data_dir)
    assert "\n" not in str(raised.value)


def test_an_npz_file_is_a_data_set(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (12, 5, 5), dtype=np.uint8)
    y = np.arange(12) % 3
    np.savez(tmp_path / "own.npz", x_train=x[:9], y_train=y[:9], x_test=x[9:], y_test=y[9:])
    data = load_dataset("npz", str(tmp_path / "own.npz"))
    assert data.x_train.shape == (9, 1, 5, 5)
    np.testing.assert_allclose(data.x_train[:, 0], x[:9] / 255, rtol=1e-6)
    np.testing.assert_array_equal(data.y_test, y[9:])
    with pytest.raises(
        ValueError, match=r"dataset 'npz': set data-dir to an \.npz file with x_train"
    ):
        load_dataset("npz")
