"""The engines that Muster's is compared with; runs in their own environment, without Muster.

python engines_peer.py ENGINE DATA.npz MODEL COHORT SECONDS   prints rounds per second of
CPU time and of the wall clock.
"""

import random
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

CLIENTS, BATCH, RATE = 100, 16, 0.01


def build(model: str) -> nn.Module:
    """The same models as `tasks.models`."""
    if model == "softmax":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def plain(shares: list[tuple[torch.Tensor, torch.Tensor]], model: str, cohort: int) -> Callable:
    """A loop with nothing around it."""
    net = build(model)
    parameters = list(net.parameters())
    current = [p.detach().clone() for p in parameters]
    draw = random.Random(0)

    def play() -> None:
        nonlocal current
        total = [torch.zeros_like(p) for p in current]
        for client in draw.sample(range(CLIENTS), cohort):
            x, y = shares[client]
            with torch.no_grad():
                for p, start in zip(parameters, current, strict=True):
                    p.copy_(start)
            rows = torch.randperm(len(y))[:BATCH]
            loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for p, gradient, t in zip(parameters, gradients, total, strict=True):
                    p.sub_(gradient, alpha=RATE)
                    t.add_(p, alpha=1 / cohort)
        current = total

    return play


def blazefl(shares: list[tuple[torch.Tensor, torch.Tensor]], model: str, cohort: int) -> Callable:
    """BlazeFL's own FedAvg, its trainer that works one client after another."""
    from blazefl.contrib.fedavg import FedAvgBaseClientTrainer, FedAvgBaseServerHandler

    class Selector:
        def select_model(self, name: str) -> nn.Module:
            return build(name)

    class Data:
        def get_dataloader(self, type_: object, cid: int, batch_size: int, generator: object):
            x, y = shares[cid]
            rows = torch.randperm(len(y), generator=generator)[:batch_size]
            return [(x[rows], y[rows])]  # one step of one batch, without a DataLoader's cost

    server = FedAvgBaseServerHandler(
        Selector(), model, Data(), 10**9, CLIENTS, cohort / CLIENTS, "cpu", BATCH, 0
    )
    trainer = FedAvgBaseClientTrainer(Selector(), model, Data(), "cpu", CLIENTS, 1, BATCH, RATE, 0)

    def play() -> None:
        clients = server.sample_clients()
        trainer.local_process(server.downlink_package(), clients)
        for package in trainer.uplink_package():
            server.load(package)

    return play


def pfl(shares: list[tuple[torch.Tensor, torch.Tensor]], model: str, cohort: int) -> Callable:
    """pfl's FederatedAveraging on its simulated backend."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = build(model)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def loss(self, x: torch.Tensor, y: torch.Tensor, **_: object) -> torch.Tensor:
            return nn.functional.cross_entropy(self(x), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor, **_: object) -> dict:
            return {}

    def draw(user: int) -> Dataset:
        x, y = shares[user]
        rows = torch.randperm(len(y))[:BATCH]
        return Dataset(raw_data=[x[rows], y[rows]])

    clients = FederatedDataset(draw, get_user_sampler("random", list(range(CLIENTS))))
    backend = SimulatedBackend(training_data=clients, val_data=clients)
    module = Module()
    wrapped = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
    )
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH)
    algorithm = FederatedAveraging()

    def play() -> None:
        nonlocal wrapped
        # Of the two iterations only the first, number 0, would evaluate: start from 1.
        algorithm._current_central_iteration = 1
        plan = NNAlgorithmParams(
            central_num_iterations=2,
            evaluation_frequency=2,
            train_cohort_size=cohort,
            val_cohort_size=0,
        )
        wrapped = algorithm.run(plan, backend, wrapped, local, send_metrics_to_platform=False)

    return play


def main() -> None:
    engine, data, model, cohort, seconds = sys.argv[1:]
    torch.set_num_threads(1)
    arrays = np.load(data)
    shares = [
        (torch.from_numpy(x), torch.from_numpy(y))
        for x, y in zip(
            np.array_split(arrays["x"], CLIENTS), np.array_split(arrays["y"], CLIENTS), strict=True
        )
    ]
    play = {"plain": plain, "blazefl": blazefl, "pfl": pfl}[engine](shares, model, int(cohort))
    for _ in range(5):
        play()
    rounds, start, wall = 0, time.process_time(), time.perf_counter()
    while (took := time.process_time() - start) < float(seconds):
        play()
        rounds += 1
    print(rounds / took, rounds / (time.perf_counter() - wall))


if __name__ == "__main__":
    main()
