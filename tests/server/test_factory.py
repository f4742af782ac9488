from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from flwr.serverapp import strategy as flower

from server.config import AGGREGATORS, STRATEGIES, RunConfig
from server.factory import build_aggregator, build_strategy
from strategies import ADCS, SCKMCluster, SCKMSelect


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_has_its_name_in_pascal_case(name: str) -> None:
    strategy = build_strategy(RunConfig(strategy=name), wait=0.0)
    assert type(strategy).__name__.lower() == name.replace("-", "")


def test_the_options_reach_the_strategy() -> None:
    config = RunConfig(
        clients_per_round=4,
        seed=9,
        candidate_fraction=0.5,
        reuse_update=False,
        weighting="uniform",
        sketch_ratio=0.1,
        sketch_kind="projection",
        sketch_layers="a,b*",
        replacements=2,
        quorum=0.25,
        deadline=11.0,
        grace=7.0,
        max_norm_ratio=33.0,
        min_clients=6,
    )
    strategy = build_strategy(config, wait=5.0)
    assert isinstance(strategy, SCKMSelect)
    found = {name: getattr(strategy, name) for name in OPTIONS}
    assert found == OPTIONS
    assert strategy.sketch == config.sketch()
    assert strategy._exchange.deadline == 11.0
    assert strategy._exchange.grace == 7.0


OPTIONS: dict[str, Any] = {
    "clients_per_round": 4,
    "seed": 9,
    "candidate_fraction": 0.5,
    "reuse_update": False,
    "by_examples": False,
    "replacements": 2,
    "quorum": 0.25,
    "max_norm_ratio": 33.0,
    "min_clients": 6,
    "wait": 5.0,
}


def test_a_gradient_cannot_be_reused() -> None:
    assert not build_strategy(RunConfig(sketch_of="gradient"), wait=0.0).reuse_update


def test_the_options_of_adcs_and_cluster_reach_their_selectors() -> None:
    adcs = build_strategy(
        RunConfig(strategy="adcs", theta=0.3, kernel_every=7, quality="mixed", gamma=0.2), wait=0.0
    )
    assert isinstance(adcs, ADCS)
    assert adcs.kernel_every == 7
    assert dataclasses.asdict(adcs.selector) == {  # type: ignore[call-overload]
        "theta": 0.3,
        "quality": "mixed",
        "gamma": 0.2,
    }
    cluster = build_strategy(
        RunConfig(strategy="sckm-cluster", min_clusters=2, age_weight=0.5, normalisation="unit"),
        wait=0.0,
    )
    assert isinstance(cluster, SCKMCluster)
    assert dataclasses.asdict(cluster.selector) == {  # type: ignore[call-overload]
        "min_clusters": 2,
        "backend": "onebatch",
        "age_weight": 0.5,
        "layer_weighting": "entries",
        "normalisation": "unit",
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fedavg", flower.FedAvg),
        ("fedavgm", flower.FedAvgM),
        ("fedadam", flower.FedAdam),
        ("fedadagrad", flower.FedAdagrad),
        ("fedyogi", flower.FedYogi),
        ("fedmedian", flower.FedMedian),
        ("fedtrimmedavg", flower.FedTrimmedAvg),
        ("krum", flower.Krum),
        ("multikrum", flower.MultiKrum),
        ("bulyan", flower.Bulyan),
    ],
)
def test_an_aggregator_is_flowers_own(name: str, kind: type) -> None:
    assert name in AGGREGATORS
    assert type(build_aggregator(RunConfig(aggregator=name))) is kind


def test_server_rate_momentum_and_malicious_clients() -> None:
    rated: Any = build_aggregator(RunConfig(server_learning_rate=0.3))
    assert type(rated) is flower.FedAvgM
    assert (rated.server_learning_rate, rated.server_momentum) == (0.3, 0.0)
    momentum: Any = build_aggregator(RunConfig(aggregator="fedavgm", server_momentum=0.5))
    assert (momentum.server_learning_rate, momentum.server_momentum) == (1.0, 0.5)
    adam: Any = build_aggregator(RunConfig(aggregator="fedadam", server_learning_rate=0.3))
    assert adam.eta == 0.3
    config = RunConfig(aggregator="multikrum", malicious_clients=2, clients_per_round=5)
    krum: Any = build_aggregator(config)
    assert (krum.num_malicious_nodes, krum.num_nodes_to_select) == (2, 3)
