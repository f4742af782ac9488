"""The two ways to simulate a run on one machine: in this process, or on Flower's Ray backend."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

import tomli_w

from server.config import ConfigError, RunConfig
from server.run_folder import new_folder
from tasks.client_data import client_data

__all__ = ["check_fits", "run_inline", "run_ray", "with_absolute_paths"]


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Return the config with `out` and `data-dir` absolute, and a new folder for an empty `out`."""
    out = Path(config.out).expanduser().absolute() if config.out else new_folder(config)
    data = str(Path(config.data_dir).expanduser().absolute()) if config.data_dir else ""
    return dataclasses.replace(config, out=str(out), data_dir=data)


def run_inline(
    config: RunConfig,
    num_clients: int,
    *,
    batching: bool = True,
    tell: Callable[[str], None] = print,
) -> Path:
    """Run in this process; return the folder with the results.

    Parameters
    ----------
    config : RunConfig
        What to run.
    num_clients : int
        How many clients there are.
    batching : bool
        Train a whole cohort in one batched computation where that is faster. Off, the result is the
        Ray engine's bit for bit; on, it is so within rounding. `config.toml` says whether it was.
    tell : callable
        Gets each line of the progress.

    Raises
    ------
    UserError
        If the configuration does not fit the clients or the run cannot go on.
    """
    check_fits(config, num_clients)
    from client.app import BATCHED_MODELS, answer_cohort, app
    from server.run import run
    from simulation.inline import InlineGrid

    batched = batching and config.model in BATCHED_MODELS
    grid = InlineGrid(
        app,
        num_clients,
        run_config=config.to_run_config(),
        answer_cohort=answer_cohort if batched else None,
    )
    facts = {"engine": "inline", "clients": num_clients, "batched-training": batched}
    return run(config, grid, wait=0.0, tell=tell, facts=facts)


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
