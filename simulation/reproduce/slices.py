"""The observations of the SCKM paper's probe: pairs of clients, their features and their use."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.config import ConfigError
from server.errors import RunAborted
from simulation.compare import ray_session
from simulation.reproduce.pair_features import pair_features, pairs

__all__ = ["Observed", "ProbeSetting", "observe", "observe_all"]


@dataclass(frozen=True)
class ProbeSetting:
    """One training in which all pairs of clients are tried; names as in the run config.

    `test_images` is how many test images a pair is judged by, spread evenly over those there are;
    0 is all of them.
    """

    dataset: str
    data_dir: str
    model: str
    num_clients: int
    shards_per_client: int
    rounds: int
    local_steps: int
    batch_size: int
    learning_rate: float
    test_images: int
    seed: int


@dataclass(frozen=True)
class Observed:
    """What a training of R rounds showed of its P pairs.

    Attributes
    ----------
    features : array of shape (R, P, 11), float64
        Of the local updates, see `pair_features`.
    accuracy : array of shape (R, P), float64
        Test accuracy in [0, 1] of the global model after the mean update of the pair alone.
    reached : array of shape (R,), float64
        Test accuracy of the global model after the round.
    """

    features: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    reached: NDArray[np.float64]


def observe(setting: ProbeSetting) -> Observed:
    """Train; in each round try what the update of each pair of clients would give.

    All clients take their local steps from the global model. Each pair's mean update is applied to
    it and the outcome tested, then undone; the model goes on with the mean update of all clients.

    Raises
    ------
    ValueError
        If the data or the model cannot be used.
    """
    from client.settings import TrainSettings
    from client.training import load_model, train, use_threads
    from strategies.arrays import pack, view
    from strategies.randomness import derive_rng
    from tasks.client_data import client_data
    from tasks.data import load_test_data
    from tasks.learning import evaluate, get_weights
    from tasks.models import initial_model

    use_threads(1)
    test = load_test_data(setting.dataset, setting.data_dir, seed=setting.seed)
    count = min(setting.test_images or len(test.y_test), len(test.y_test))
    rows = np.arange(count) * len(test.y_test) // count
    x_test, y_test = test.x_test[rows], test.y_test[rows]
    clients = [
        client_data(
            setting.dataset,
            setting.data_dir,
            "shards",
            client,
            setting.num_clients,
            shards_per_client=setting.shards_per_client,
            alpha=1.0,
            seed=setting.seed,
        )
        for client in range(setting.num_clients)
    ]
    model = initial_model(setting.model, test.x_test.shape[1:], test.num_classes, seed=setting.seed)
    start = get_weights(model)
    layers = {name: (value.shape, value.size) for name, value in start.items()}
    current = _flat(start)

    def packed(weights: NDArray[np.float32]) -> Any:
        ends = np.cumsum([size for _, size in layers.values()])[:-1]
        parts = np.split(weights, ends)
        return pack(
            {
                name: p.reshape(shape)
                for p, (name, (shape, _)) in zip(parts, layers.items(), strict=True)
            }
        )

    def accuracy(weights: NDArray[np.float32]) -> float:
        tested = load_model(setting.model, test.num_classes, clients[0], packed(weights))
        return evaluate(tested, x_test, y_test)[0]

    features, accuracies, reached = [], [], []
    for server_round in range(1, setting.rounds + 1):
        how = TrainSettings(
            round=server_round,
            seed=setting.seed,
            local_steps=setting.local_steps,
            batch_size=setting.batch_size,
            learning_rate=setting.learning_rate,
            threads=1,
            num_classes=test.num_classes,
            needs=frozenset(),
        )
        updates = np.empty((len(clients), len(current)), dtype=np.float32)
        arrays = packed(current)
        for row, data in enumerate(clients):
            local = load_model(setting.model, test.num_classes, data, arrays)
            rng = derive_rng(setting.seed, server_round, str(row), "batches")
            trained = train(local, data, how, rng).arrays
            updates[row] = current - _flat({name: view(a) for name, a in trained.items()})
        features.append(pair_features(updates))
        accuracies.append(
            [accuracy(current - (updates[i] + updates[j]) / 2) for i, j in pairs(len(clients))]
        )
        current = current - updates.mean(axis=0)
        reached.append(accuracy(current))
    return Observed(np.array(features), np.array(accuracies), np.array(reached))


def observe_all(
    settings: Sequence[ProbeSetting],
    folder: Path,
    *,
    cpus: int | None,
    tell: Callable[[str], None],
) -> list[Observed]:
    """Return what each setting shows; those not in `folder` yet run in parallel as Ray tasks.

    Parameters
    ----------
    settings : sequence of ProbeSetting
        They differ in shards or seed.
    folder : Path
        Keeps a file for each setting, written whole or not at all.
    cpus : int, optional
        How many at a time; by default one per CPU.
    tell : callable
        Gets a line for each setting that ends.

    Raises
    ------
    ConfigError
        Before anything runs: if a file is of another setting or cannot be read, or the data is not
        there.
    RunAborted
        If a setting failed, after all others have ended.
    """
    files = [folder / f"shards-{s.shards_per_client}-seed-{s.seed}.npz" for s in settings]
    todo = []
    for row, (file, setting) in enumerate(zip(files, settings, strict=True)):
        if file.exists():
            _read(file, setting)  # before anything runs, whether it can be used
        else:
            todo.append(row)
    failed = 0
    if todo:
        import ray

        _check_data(settings[todo[0]])
        folder.mkdir(parents=True, exist_ok=True)
        tell(f"{len(todo)} of {len(settings)} probes to do")
        with ray_session(cpus, None):
            task = ray.remote(num_cpus=1, max_retries=0)(observe)
            waiting = {task.remote(settings[row]): row for row in todo}
            while waiting:
                (done,), _ = ray.wait(list(waiting), num_returns=1)
                row = waiting.pop(done)
                try:
                    _write(files[row], settings[row], ray.get(done))
                except ray.exceptions.RayError as error:
                    failed += 1
                    outcome = f"failed: {str(error).strip().splitlines()[-1]}"
                else:
                    outcome = "finished"
                left = len(waiting)
                tell(f"{len(settings) - left}/{len(settings)} probe {files[row].stem}: {outcome}")
    if failed:
        raise RunAborted(f"{failed} of {len(settings)} probes failed; the same command goes on")
    return [_read(file, setting) for file, setting in zip(files, settings, strict=True)]


def _check_data(setting: ProbeSetting) -> None:
    from tasks.data import load_test_data

    try:
        load_test_data(setting.dataset, setting.data_dir, seed=setting.seed)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _flat(arrays: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    return np.concatenate([value.ravel() for value in arrays.values()]).astype(np.float32)


def _described(setting: ProbeSetting) -> str:
    # The same data may be elsewhere when it is read again.
    return json.dumps({**dataclasses.asdict(setting), "data_dir": ""})


def _read(file: Path, setting: ProbeSetting) -> Observed:
    try:
        with np.load(file, allow_pickle=False) as stored:
            described = str(stored["setting"])
            observed = Observed(stored["features"], stored["accuracy"], stored["reached"])
    except Exception as error:  # zipfile, zlib and NumPy each raise their own
        raise ConfigError(f"{file} cannot be read ({error}); remove it") from error
    if described != _described(setting):
        raise ConfigError(f"{file} holds a probe with other settings; name another --out")
    return observed


def _write(file: Path, setting: ProbeSetting, observed: Observed) -> None:
    partial = file.with_suffix(".partial")
    with open(partial, "wb") as stream:
        np.savez(stream, setting=np.array(_described(setting)), **dataclasses.asdict(observed))
    os.replace(partial, file)
