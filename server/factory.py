"""From a run config to a strategy and its aggregator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from flwr.serverapp.strategy import (
    Bulyan,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
    Strategy,
)

from server.config import ConfigError, RunConfig
from strategies import (
    ADCS,
    AFL,
    GPFL,
    OCS,
    CosineDiversity,
    DivFL,
    FedCor,
    FedCS,
    KMeansL2,
    Oort,
    PowerOfChoice,
    RoundRobin,
    SCKMCluster,
    SCKMSelect,
    StaticDPP,
    TwoPhaseStrategy,
    Uniform,
)

__all__ = ["build_aggregator", "build_strategy"]


def build_aggregator(config: RunConfig) -> Strategy:
    """Return the Flower strategy named by `aggregator`."""
    rate = config.server_learning_rate
    optimiser: dict[str, Any] = {"eta": rate} if rate else {}
    expected = config.malicious_clients
    builders: dict[str, Callable[[], Strategy]] = {
        # Flower's FedAvg has no server learning rate; FedAvgM without momentum is just that.
        "fedavg": lambda: FedAvgM(server_learning_rate=rate) if rate else FedAvg(),
        "fedavgm": lambda: FedAvgM(
            server_learning_rate=rate or 1.0, server_momentum=config.server_momentum
        ),
        "fedadam": lambda: FedAdam(**optimiser),
        "fedadagrad": lambda: FedAdagrad(**optimiser),
        "fedyogi": lambda: FedYogi(**optimiser),
        "fedmedian": FedMedian,
        "fedtrimmedavg": FedTrimmedAvg,
        "krum": lambda: Krum(num_malicious_nodes=expected),
        "multikrum": lambda: MultiKrum(
            num_malicious_nodes=expected,
            num_nodes_to_select=max(1, config.clients_per_round - expected),
        ),
        "bulyan": lambda: Bulyan(num_malicious_nodes=expected),
    }
    return builders[config.aggregator]()


def build_strategy(config: RunConfig, *, wait: float) -> TwoPhaseStrategy:
    """Return the strategy named by `strategy`, with its aggregator.

    Parameters
    ----------
    config : RunConfig
        The run's configuration.
    wait : float
        Seconds to wait for enough clients.
    """
    shared: dict[str, Any] = {
        "clients_per_round": config.clients_per_round,
        "seed": config.seed,
        "aggregator": build_aggregator(config),
        "sketch": config.sketch(),
        "sketch_of": config.sketch_of,
        "candidate_fraction": config.candidate_fraction,
        "reuse_update": config.reuse_update,
        "weighting": config.weighting,
        "replacements": config.replacements,
        "quorum": config.quorum,
        "deadline": config.deadline,
        "grace": config.grace,
        "max_norm_ratio": config.max_norm_ratio,
        "min_clients": config.min_clients,
        "wait": wait,
    }
    # The config has checked the names that mypy cannot.
    values: dict[str, Any] = config.to_run_config()
    sckm: dict[str, Any] = {
        "age_weight": config.age_weight,
        "layer_weighting": config.layer_weighting,
        "normalisation": config.normalisation,
    }
    if (config.strategy, config.k_medoids) == ("sckm-cluster", "sklearn-extra"):
        try:
            import sklearn_extra.cluster  # noqa: F401
        except Exception as error:  # beside NumPy 2 its import fails with a ValueError
            raise ConfigError(
                f"k-medoids = 'sklearn-extra': cannot be loaded ({error}); install the extra "
                "[sklearn-extra] in an environment with NumPy below 2, or use 'onebatch'"
            ) from error
    builders: dict[str, Callable[[], TwoPhaseStrategy]] = {
        "sckm-select": lambda: SCKMSelect(**sckm, **shared),
        "sckm-cluster": lambda: SCKMCluster(
            min_clusters=config.min_clusters, backend=values["k-medoids"], **sckm, **shared
        ),
        "adcs": lambda: ADCS(
            theta=config.theta,
            kernel_every=config.kernel_every,
            quality=values["quality"],
            gamma=config.gamma,
            **shared,
        ),
        "uniform": lambda: Uniform(**shared),
        "round-robin": lambda: RoundRobin(**shared),
        "power-of-choice": lambda: PowerOfChoice(variant=values["variant"], **shared),
        "ocs": lambda: OCS(probabilistic=config.probabilistic, **shared),
        "afl": lambda: AFL(**shared),
        "divfl": lambda: DivFL(no_overheads=config.no_overheads, **shared),
        "fedcor": lambda: FedCor(warmup=config.warmup, refit_every=config.refit_every, **shared),
        "gpfl": lambda: GPFL(**shared),
        "kmeans-l2": lambda: KMeansL2(**shared),
        "cosine-diversity": lambda: CosineDiversity(**shared),
        "static-dpp": lambda: StaticDPP(**shared),
        "oort": lambda: Oort(**shared),
        "fedcs": lambda: FedCS(round_seconds=config.round_seconds or math.inf, **shared),
    }
    return builders[config.strategy]()
