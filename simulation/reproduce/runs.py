"""Run settings × seeds, and reduce each run to the few numbers that tables and figures are made of.

A run of 20,000 rounds has written 30 MB. Runs are read line by line, one after another.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from server.config import ConfigError, RunConfig
from server.errors import RunAborted
from server.results import load_config, read_rounds
from simulation.compare import Job, is_finished, run_jobs
from simulation.engines import check_fits, with_absolute_paths
from simulation.reproduce.item import Options, Setting
from strategies.naming import natural_key

__all__ = ["Result", "load_result", "run_settings"]

_REMEDY = "remove that folder, and the same command runs it again"


@dataclass(frozen=True)
class Result:
    """One run, reduced. It has N clients, E evaluations and C rounds with clusters.

    Attributes
    ----------
    seed : int
        Of the run.
    clients : tuple of N str
        Names in natural order.
    rounds : array of shape (E,), int64
        The rounds that were evaluated.
    accuracy, worst : arrays of shape (E,), float64
        Mean over clients and the worst client's, in [0, 1].
    central : array of shape (E,), float64
        On the whole test set, in [0, 1]; NaN where it was not measured.
    by_client : array of shape (N,), float64
        Each client's accuracy at the last evaluation; NaN for one that was not evaluated then.
    picks : array of shape (N,), int64
        In how many rounds each client was picked.
    cluster_rounds, clusters : arrays of shape (C,), int64
        The rounds in which clusters were found, and how many.
    """

    seed: int
    clients: tuple[str, ...]
    rounds: NDArray[np.int64]
    accuracy: NDArray[np.float64]
    worst: NDArray[np.float64]
    central: NDArray[np.float64]
    by_client: NDArray[np.float64]
    picks: NDArray[np.int64]
    cluster_rounds: NDArray[np.int64]
    clusters: NDArray[np.int64]


def run_settings(
    settings: Sequence[Setting], options: Options, *, folder: str, minutes: float | None = None
) -> dict[str, list[Result]]:
    """Run every setting with seeds 0, 1, ..., as far as that is not done yet.

    A run's folder is `options.out / folder / label / seed-n`. All settings with one seed come
    before the next seed, so that what an interruption leaves can be compared.

    Parameters
    ----------
    settings : sequence of Setting
        No label twice. `seed`, `out` and `data-dir` are set here; `checkpoint-every` is 0 unless
        given.
    options : Options
        Where, how many seeds, how many runs at a time.
    folder : str
        Part of the path, to keep runs of different scale apart; may be empty.
    minutes : float, optional
        What one run takes on one CPU, as measured; told before the first starts.

    Returns
    -------
    dict
        The results of each setting by its label, by rising seed.

    Raises
    ------
    ConfigError
        Before anything runs: if a setting does not fit its clients, its data is not there, or a
        folder holds another run.
    RunAborted
        If runs failed, after all others have ended; what was finished is kept.
    """
    jobs = _jobs(settings, options, folder)
    todo = {name: job for name, job in jobs.items() if not is_finished(job)}
    for job in {label: job for (label, _), job in todo.items()}.values():
        check_fits(job.config, job.num_clients)
    done = len(jobs) - len(todo)
    if todo:
        options.tell(f"{len(todo)} of {len(jobs)} runs to do{_length(len(todo), minutes, options)}")
    failed = 0
    names = {job.folder: name for name, job in todo.items()}

    def on_done(job: Job, reason: str | None) -> None:
        nonlocal done, failed
        done += 1
        failed += reason is not None
        outcome = "finished" if reason is None else f"failed: {reason}"
        label, seed = names[job.folder]
        options.tell(f"{done}/{len(jobs)} {label}, seed {seed}: {outcome}")

    run_jobs(list(todo.values()), cpus=options.cpus, on_done=on_done)
    if failed:
        raise RunAborted(
            f"{failed} of {len(jobs)} runs failed; the same command goes on with them, what is "
            "finished is kept"
        )
    results: dict[str, list[Result]] = {setting.label: [] for setting in settings}
    for (label, _), job in jobs.items():
        results[label].append(load_result(job.folder))
    return results


def load_result(folder: Path) -> Result:
    """Read a run's folder, one line at a time.

    Raises
    ------
    RunAborted
        If the folder does not hold a run with all its rounds.
    """
    picks: dict[str, int] = {}
    evaluated: list[tuple[int, float, float, float]] = []
    clusters: list[tuple[int, int]] = []
    by_client: dict[str, float] = {}
    last = 0
    try:
        config = load_config(folder)
        seed, planned = config["seed"], config["num-server-rounds"]
        for line in read_rounds(folder):
            last = line["round"]
            for name in line["eligible"]:
                picks.setdefault(name, 0)
            for name in line["selected"]:
                picks[name] = picks.get(name, 0) + 1
            if "clusters" in line:
                clusters.append((line["round"], int(line["clusters"])))
            metrics = line["metrics"]
            if "accuracy" in metrics:
                worst = metrics.get("worst-accuracy", np.nan)
                central = metrics.get("central-accuracy", np.nan)
                evaluated.append((line["round"], metrics["accuracy"], worst, central))
                by_client = metrics.get("accuracy-by-client", {})
        if last != planned:
            raise ValueError(f"{folder / 'rounds.jsonl'} ends with round {last} of {planned}")
    except ValueError as error:
        raise RunAborted(f"{error}; {_REMEDY}") from None
    except KeyError as error:
        raise RunAborted(f"{folder} is not a run: it lacks {error}; {_REMEDY}") from None
    clients = tuple(sorted(picks, key=natural_key))
    table = np.array(evaluated, dtype=np.float64).reshape(-1, 4)
    found = np.array(clusters, dtype=np.int64).reshape(-1, 2)
    return Result(
        seed=seed,
        clients=clients,
        rounds=table[:, 0].astype(np.int64),
        accuracy=table[:, 1],
        worst=table[:, 2],
        central=table[:, 3],
        by_client=np.array([by_client.get(name, np.nan) for name in clients]),
        picks=np.array([picks[name] for name in clients], dtype=np.int64),
        cluster_rounds=found[:, 0],
        clusters=found[:, 1],
    )


def _length(runs: int, minutes: float | None, options: Options) -> str:
    if minutes is None:
        return ""
    there = os.cpu_count() or 1
    cpus = options.cpus or there
    waves = math.ceil(runs / min(cpus, there))  # more at a time than CPUs take no less
    return f", roughly {math.ceil(waves * minutes)} min with {cpus} at a time"


def _jobs(settings: Sequence[Setting], options: Options, folder: str) -> dict[tuple[str, int], Job]:
    """Return the job of each label and seed, all labels of one seed before the next."""
    if options.seeds < 1:
        raise ConfigError(f"seeds = {options.seeds}: must be at least 1")
    if len({setting.label for setting in settings}) < len(settings):
        raise ValueError("settings: a label is there twice")
    jobs = {}
    for seed in range(options.seeds):
        for setting in settings:
            out = options.out.absolute() / folder / setting.label / f"seed-{seed}"
            values = {"checkpoint-every": 0, **setting.values, "seed": seed, "out": str(out)}
            if options.data_dir:
                values["data-dir"] = options.data_dir
            config = with_absolute_paths(RunConfig.parse(values))
            jobs[setting.label, seed] = Job(config, setting.num_clients)
    return jobs
