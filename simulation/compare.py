"""Run strategies × seeds in parallel as Ray tasks, and go on where an earlier comparison stopped.

A task works in a folder of its own and returns what it wrote; the driver puts it in place in one
step. So a folder that exists holds a finished run, and a cluster needs no shared disk.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from server.config import ConfigError, RunConfig, Scalar
from server.errors import RunAborted, UserError
from server.results import load_config
from server.run_folder import RunFolderError
from simulation.engines import is_batched, with_absolute_paths

__all__ = ["Job", "is_finished", "make_folder", "plan", "ray_session", "run_jobs"]

# What may differ between a finished run and the same run asked for again.
_IMMATERIAL = ("out", "resume", "checkpoint-every")


@dataclass(frozen=True)
class Job:
    """One run of a comparison; `config.out` is its folder."""

    config: RunConfig
    num_clients: int
    batching: bool = True

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return Path(self.config.out)


def plan(
    values: Mapping[str, Scalar],
    *,
    strategies: Sequence[str],
    seeds: int,
    num_clients: int,
    out: Path,
    batching: bool = True,
) -> list[Job]:
    """Return the runs of a comparison, the seeds of one strategy after another.

    Parameters
    ----------
    values : mapping
        Run-config values that all runs share; `seed` is the first seed.
    strategies : sequence of str
        Names of strategies, none twice.
    seeds : int
        How many seeds, at least 1.
    num_clients : int
        Clients in each run.
    out : Path
        The comparison's folder.
    batching : bool
        As `run_inline` takes it.

    Raises
    ------
    ConfigError
        If a value, a name or a number is not allowed.
    """
    if seeds < 1:
        raise ConfigError(f"seeds = {seeds}: must be at least 1")
    if not strategies or len(set(strategies)) < len(strategies):
        raise ConfigError(f"strategies = {','.join(strategies)!r}: must be names, none twice")
    for key in ("strategy", "out", "resume"):
        if key in values:
            raise ConfigError(f"{key}: is set by the comparison itself")
    first = RunConfig.parse(values).seed
    jobs = []
    for strategy in strategies:
        for seed in range(first, first + seeds):
            folder = out.absolute() / strategy / f"seed-{seed}"
            each = {"checkpoint-every": 0, **values, "strategy": strategy, "seed": seed}
            config = RunConfig.parse({**each, "out": str(folder)})
            if config.clients_per_round > num_clients:
                raise ConfigError(
                    f"clients-per-round = {config.clients_per_round}: must be at most the number "
                    f"of clients, {num_clients}"
                )
            jobs.append(Job(with_absolute_paths(config), num_clients, batching))
    return jobs


def is_finished(job: Job) -> bool:
    """Whether the job's folder holds its results already.

    Raises
    ------
    ConfigError
        If the folder holds something else.
    """
    if not job.folder.exists():
        return False
    try:
        found = load_config(job.folder)
    except ValueError as error:
        raise ConfigError(f"{error}; remove it or name another --out") from None
    wanted = {
        **job.config.to_run_config(),
        "clients": job.num_clients,
        "batched-training": is_batched(job.config, job.batching),
    }
    for key, value in wanted.items():
        if key not in _IMMATERIAL and found.get(key) != value:
            raise ConfigError(
                f"{job.folder} holds a run with {key} = {found.get(key)!r}, not {value!r}; "
                "name another --out"
            )
    return True


def make_folder(out: Path) -> None:
    """Make the folder for results if need be; find out before hours of runs if it takes no files.

    Raises
    ------
    RunFolderError
        If it cannot be made or written to.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise RunFolderError(
            f"--out = {out}: must be a folder that can be written to ({error.strerror or error})"
        ) from error


def run_jobs(
    jobs: Sequence[Job],
    *,
    cpus: int | None = None,
    ray_address: str | None = None,
    on_done: Callable[[Job, str | None], None],
) -> None:
    """Run jobs in parallel, one CPU each, and put the results in their folders.

    Parameters
    ----------
    jobs : sequence of Job
        Not finished yet.
    cpus : int, optional
        How many at a time on this machine; by default one per CPU. Not used with `ray_address`.
    ray_address : str, optional
        A Ray cluster whose nodes have this project installed.
    on_done : callable
        Called with each job as it ends, and with the reason if it failed. A failed job does not
        stop the others.

    Raises
    ------
    RunFolderError
        If results cannot be written; what is in place is whole.
    RunAborted
        If Ray cannot be reached.
    """
    if not jobs:
        return
    import ray

    with ray_session(cpus, ray_address):
        task = ray.remote(num_cpus=1, max_retries=0)(_run_job)
        waiting = {
            task.remote(job.config.to_run_config(), job.num_clients, job.batching): job
            for job in jobs
        }
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            job = waiting.pop(done)
            try:
                files = ray.get(done)
            except UserError as error:
                on_done(job, str(error))
            except ray.exceptions.RayError as error:
                on_done(job, _last_line(error))
            else:
                _place(job.folder, files)
                on_done(job, None)


def _run_job(values: Mapping[str, Scalar], num_clients: int, batching: bool) -> dict[str, bytes]:
    """Run in a temporary folder; return the files of the results by name."""
    from simulation.engines import run_inline

    with tempfile.TemporaryDirectory(prefix="muster-job-") as parent:
        config = RunConfig.parse({**values, "out": str(Path(parent) / "run")})
        folder = run_inline(config, num_clients, batching=batching, tell=lambda line: None)
        files = [file for file in folder.rglob("*") if file.is_file()]
        return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def _place(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a run's folder, whole or not at all."""
    partial = folder.with_name(f".{folder.name}.partial")
    config = tomllib.loads(files["config.toml"].decode())
    files = {**files, "config.toml": tomli_w.dumps({**config, "out": str(folder)}).encode()}
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, data in files.items():
            (partial / name).parent.mkdir(exist_ok=True)
            (partial / name).write_bytes(data)
        os.replace(partial, folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise RunFolderError(
            f"cannot write {folder}: {error.strerror or error}; finished runs are safe, and the "
            "same command goes on with the rest"
        ) from error


@contextmanager
def ray_session(cpus: int | None, address: str | None) -> Iterator[None]:
    """Start Ray on this machine, or connect to a cluster, for the time of the block.

    Raises
    ------
    RunAborted
        If Ray cannot be reached.
    """
    import ray

    # Workers import this project from where it was imported here.
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    local: dict[str, Any] = {
        "num_cpus": cpus,
        "include_dashboard": False,
        "runtime_env": {"env_vars": {"PYTHONPATH": path}},
    }
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # a tip of Ray's
            ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({} if address else local),
            )
    except Exception as error:  # Ray's own is a plain Exception if it does not start in time
        raise RunAborted(f"Ray at {address or 'this machine'}: {_last_line(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
