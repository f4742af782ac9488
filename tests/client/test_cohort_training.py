import numpy as np
import pytest
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from client.settings import TrainSettings
from client.training import (
    first_gradient,
    load_model,
    losses,
    softmax_cohort_first_losses,
    softmax_cohort_losses,
    train,
    train_softmax_cohort,
    use_threads,
)
from strategies.arrays import pack, view
from tasks.client_data import ClientData


def client(rng: np.random.Generator, examples: int, classes: int) -> ClientData:
    x = rng.normal(size=(examples, 1, 3, 2)).astype(np.float32)
    y = rng.integers(classes, size=examples)
    return ClientData(x, y, x[:1], y[:1], classes)


def softmax_model(rng: np.random.Generator, classes: int, scale: float = 1.0) -> ArrayRecord:
    return pack(
        {
            "classifier.weight": scale * rng.normal(size=(classes, 6)).astype(np.float32),
            "classifier.bias": rng.normal(size=classes).astype(np.float32),
        }
    )


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    steps=st.integers(1, 5),
    batch=st.integers(1, 7),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_training_each_client_alone(
    sizes: list[int], steps: int, batch: int, seed: int
) -> None:
    rng, classes = np.random.default_rng(seed), 4
    cohort = [client(rng, size, classes) for size in sizes]
    start = softmax_model(rng, classes)
    how = TrainSettings(1, 0, steps, batch, 0.3, 1, classes, frozenset())
    together = train_softmax_cohort(
        cohort, start, how, [np.random.default_rng((seed, k)) for k in range(len(cohort))]
    )
    for k, (data, batched) in enumerate(zip(cohort, together, strict=True)):
        model = load_model("softmax", classes, data, start)
        alone = train(model, data, how, np.random.default_rng((seed, k)))
        assert list(batched.arrays) == list(alone.arrays)
        for name, array in alone.arrays.items():
            got = view(batched.arrays[name])
            np.testing.assert_allclose(got, view(array), rtol=2e-5, atol=2e-6)
            assert got.dtype == np.float32
        assert batched.loss == pytest.approx(alone.loss, rel=1e-5, abs=1e-6)
        assert batched.first_loss == pytest.approx(alone.first_loss, rel=1e-5, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    scale=st.sampled_from([0.0, 1.0, 1e3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_losses_equal_those_of_each_client_alone(sizes: list[int], scale: float, seed: int) -> None:
    rng, classes = np.random.default_rng(seed), 4
    cohort = [client(rng, size, classes) for size in sizes]
    arrays = softmax_model(rng, classes, scale)
    together = softmax_cohort_losses(cohort, arrays)
    alone = [losses(load_model("softmax", classes, data, arrays), data).mean() for data in cohort]
    assert together == pytest.approx(alone, rel=1e-5, abs=1e-5 * max(scale, 1))

    how = TrainSettings(1, 0, 2, 3, 0.3, 1, classes, frozenset())

    def rngs() -> list[np.random.Generator]:
        return [np.random.default_rng((seed, k)) for k in range(len(cohort))]

    first = softmax_cohort_first_losses(cohort, arrays, how, rngs())
    alone_first = [
        first_gradient(load_model("softmax", classes, data, arrays), data, how, own)[1]
        for data, own in zip(cohort, rngs(), strict=True)
    ]
    assert first == pytest.approx(alone_first, rel=1e-5, abs=1e-5 * max(scale, 1))


def test_losses_are_the_same_from_call_to_call() -> None:
    """To the bit, whatever thread a client falls to."""
    rng, examples, features = np.random.default_rng(0), 600, 784
    cohort = []
    for _ in range(8):
        x = rng.normal(size=(examples, features)).astype(np.float32)
        y = rng.integers(10, size=examples)
        cohort.append(ClientData(x, y, x[:1], y[:1], 10))
    weight = rng.normal(size=(10, features)).astype(np.float32)
    arrays = pack({"weight": weight, "bias": np.zeros(10, np.float32)})
    use_threads(1)
    alone = [softmax_cohort_losses([data], arrays)[0] for data in cohort]
    for _ in range(20):
        assert softmax_cohort_losses(cohort, arrays) == alone
