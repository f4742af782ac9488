"""The two ways to simulate a run on one machine: in this process, or on Flower's Ray backend."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w

from server.config import ConfigError, RunConfig
from server.run_folder import new_folder
from tasks.client_data import client_data

if TYPE_CHECKING:
    from simulation.inline import InlineGrid

__all__ = ["check_fits", "is_batched", "run_inline", "run_ray", "with_absolute_paths"]


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Return the config with `out` and `data-dir` absolute, and a new folder for an empty `out`."""
    out = Path(config.out).expanduser().absolute() if config.out else new_folder(config)
    data = str(Path(config.data_dir).expanduser().absolute()) if config.data_dir else ""
    return dataclasses.replace(config, out=str(out), data_dir=data)


def is_batched(config: RunConfig, batching: bool) -> bool:
    """Whether `run_inline` trains cohorts in batched computations, where it is allowed to."""
    from client.app import BATCHED_MODELS

    return batching and config.model in BATCHED_MODELS


def run_inline(
    config: RunConfig,
    num_clients: int,
    *,
    batching: bool = True,
    workers: int = 1,
    tell: Callable[[str], None] = print,
) -> Path:
    """Run in this process, or with worker processes; return the folder with the results.

    Parameters
    ----------
    config : RunConfig
        What to run.
    num_clients : int
        How many clients there are.
    batching : bool
        Train a whole cohort in one batched computation where that is faster. Off, the result is the
        Ray engine's bit for bit; on, it is so within rounding. `config.toml` says whether it was.
    workers : int
        How many processes train the clients, this one and as many beside it as that takes. The
        result is the same: without batching bit for bit, with it within rounding.
    tell : callable
        Gets each line of the progress.

    Raises
    ------
    UserError
        If the configuration does not fit the clients or the run cannot go on.
    """
    check_fits(config, num_clients)
    if workers < 1:
        raise ConfigError(f"workers = {workers}: must be at least 1")
    from client.training import use_threads
    from server.run import run
    from simulation.workers import WorkerGrid

    batched = is_batched(config, batching)
    facts = {
        "engine": "inline",
        "clients": num_clients,
        "workers": workers,
        "batched-training": batched,
    }
    make = partial(_inline_grid, config, num_clients, batched)
    use_threads(config.client_threads)  # the server too, wherever the clients are
    with (
        nullcontext(make()) if workers == 1 else WorkerGrid(make, num_clients, workers=workers)
    ) as grid:
        return run(config, grid, wait=0.0, tell=tell, facts=facts)


def _inline_grid(config: RunConfig, num_clients: int, batched: bool) -> InlineGrid:
    from client.app import answer_cohort, app
    from client.training import use_threads
    from simulation.inline import InlineGrid

    use_threads(config.client_threads)
    return InlineGrid(
        app,
        num_clients,
        run_config=config.to_run_config(),
        answer_cohort=answer_cohort if batched else None,
    )


def run_ray(
    config: RunConfig,
    num_clients: int,
    *,
    cpus: int | None = None,
    tell: Callable[[str], None] = print,
) -> Path:
    """Run on Flower's Ray backend; return the folder with the results.

    Raises
    ------
    UserError, RunFailed
        As `run_inline`; `RunFailed` also if Flower or Ray does not do its part.
    """
    check_fits(config, num_clients)
    from simulation.flower import run_on_ray

    config = with_absolute_paths(config)
    with tempfile.TemporaryDirectory(prefix="muster-app-") as folder:
        # An app of a few lines whose code is the installed packages: works from a wheel too, and
        # Flower has no repository to pack.
        app = Path(folder)
        (app / "pyproject.toml").write_text(_app_description(config), encoding="utf-8")

        def on_line(line: str) -> None:
            if not line.startswith("error: "):  # the reason is raised as well
                tell(line)

        run_on_ray(app, {}, num_clients=num_clients, cpus=cpus, on_line=on_line)
    return Path(config.out)


def _app_description(config: RunConfig) -> str:
    components = {"serverapp": "server.app:app", "clientapp": "client.app:app"}
    app = {"publisher": "muster", "components": components, "config": config.to_run_config()}
    project = {
        "name": "muster-run",
        "version": "0.1.0",
        "description": "One run of Muster",
        "license": "Apache-2.0",
    }
    return tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}})


def check_fits(config: RunConfig, num_clients: int) -> None:
    """Find out before a run what would stop it: too few clients, data not there or not divisible.

    Raises
    ------
    ConfigError
        Saying what is wrong, in one line.
    """
    if num_clients < 1:
        raise ConfigError(f"clients = {num_clients}: must be at least 1")
    if config.clients_per_round > num_clients:
        raise ConfigError(
            f"clients-per-round = {config.clients_per_round}: must be at most the number of "
            f"clients, {num_clients}"
        )
    try:
        # What no client could be given would otherwise be told by each of them, in every round.
        client_data(
            config.dataset,
            config.data_dir,
            config.partitioner,
            0,
            num_clients,
            shards_per_client=config.shards_per_client,
            alpha=config.alpha,
            seed=config.seed,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
