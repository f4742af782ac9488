from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from simulation.reproduce import cifar
from tasks.data import LabelledArrays, load_dataset


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Put stripes, whose direction is their class, in the place of CIFAR; return what was asked."""
    seen: list[tuple[str, str]] = []
    rng = np.random.default_rng(0)

    def images(labels: np.ndarray) -> Any:
        phase = rng.uniform(0, 6, (len(labels), 1, 1, 1))
        across = np.arange(32) * 0.8
        waves = np.where(
            labels[:, None, None, None] == 0,
            np.sin(across[None, None, :, None] + phase),
            np.sin(across[None, None, None, :] + phase),
        )
        x = 128 + 60 * waves + rng.normal(0, 20, (len(labels), 3, 32, 32))
        return np.clip(x, 0, 255).astype(np.uint8)

    def stored_arrays(name: str, data_dir: str) -> LabelledArrays:
        seen.append((name, data_dir))
        train, test = rng.permutation(np.arange(1400) % 2), np.arange(500) % 2
        return LabelledArrays(images(train), train, images(test), test, 2)

    monkeypatch.setattr(cifar, "stored_arrays", stored_arrays)
    return seen


def test_images_are_few_small_and_standardised(asked: list[tuple[str, str]]) -> None:
    x_train, y_train, x_test, y_test = cifar.small_cifar10("somewhere")
    assert asked == [("cifar10", "somewhere")]
    assert x_train.shape == (1000, 3, 16, 16)
    assert x_test.shape == (400, 3, 16, 16)
    assert x_train.dtype == np.float32
    assert np.bincount(y_train).tolist() == [500, 500]
    assert np.bincount(y_test).tolist() == [200, 200]
    np.testing.assert_allclose(x_train.mean(axis=(0, 2, 3)), 0, atol=1e-4)
    np.testing.assert_allclose(x_train.std(axis=(0, 2, 3)), 1, atol=1e-4)


def test_features_repeat_and_tell_what_is_seen(asked: list[tuple[str, str]]) -> None:
    x_train, y_train, x_test, y_test = cifar.cifar100_features("")
    assert asked == [("cifar100", "")]
    assert x_train.shape == (200, 1024)
    assert x_train.dtype == x_test.dtype == np.float32
    assert np.abs(x_train.mean(axis=0)).max() < 1e-3
    model = LogisticRegression(C=0.01).fit(x_train, y_train)
    assert model.score(x_test, y_test) > 0.95


def test_features_do_not_look_at_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((20, 3, 16, 16)).astype(np.float32)
    y = np.arange(20) % 2
    first, second = cifar._features((x, y, x, y)), cifar._features((x, 1 - y, x, 1 - y))
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[2], first[0])


def test_they_are_data_sources(asked: list[tuple[str, str]]) -> None:
    data = load_dataset("simulation.reproduce.cifar:cifar10_features", "any")
    assert data.x_train.shape == (1000, 1024)
    assert data.num_classes == 2
