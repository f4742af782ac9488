"""The `muster` command. Heavy imports are late: `muster --help` answers at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulation.deployment_commands import credentials, doctor
from simulation.reproduce.command import reproduce
from simulation.terminal import fail, tell, told_in_one_line

if TYPE_CHECKING:
    from server.config import Scalar
    from server.results import Run
    from simulation.compare import Job
    from simulation.outcomes import Group

__all__ = ["app"]

app = typer.Typer(
    name="muster",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Engine(StrEnum):
    """How clients are simulated."""

    inline = "inline"
    ray = "ray"


Clients = Annotated[int, typer.Option("--clients", "-n", help="Number of clients.")]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--run-config",
        "-c",
        metavar="'KEY=VALUE ...'",
        help="Run-config values as `flwr run` takes them: 'strategy=\"adcs\" theta=0.5', or a "
        ".toml file. May be given several times. Keys left out have their defaults.",
    ),
]
Batching = Annotated[
    bool,
    typer.Option(
        help="Train softmax regression for all picked clients at once, in the inline engine. "
        "Without it the result is the Ray engine's bit for bit, with it within rounding."
    ),
]


@app.callback()
def main() -> None:
    """Choose which clients train in each round of federated learning, and see what it changes.

    Start with `muster run`: handwritten digits, 10 clients, a few seconds.
    """


@app.command(short_help="Run one simulation.")
def run(
    clients: Clients = 10,
    values: Values = None,
    engine: Annotated[
        Engine,
        typer.Option(
            help="inline: in this process, fast. ray: on Flower's own Ray backend, one process a "
            "CPU."
        ),
    ] = Engine.inline,
    cpus: Annotated[
        int | None, typer.Option(help="CPUs for --engine ray; by default all of them.")
    ] = None,
    batching: Batching = True,
    workers: Annotated[
        int,
        typer.Option(
            help="inline: processes that train clients, this one included, no more than "
            "CPUs. The result is the same; a CNN is faster, a small model slower."
        ),
    ] = 1,
) -> None:
    """Run one simulation; print a line a round and where the results are.

    Example: muster run --clients 30 -c 'strategy="adcs" clients-per-round=6'
    """
    with told_in_one_line():
        from server.config import ConfigError, RunConfig
        from simulation.engines import run_inline, run_ray, with_absolute_paths
        from simulation.overrides import parse_overrides

        if engine is Engine.ray and workers != 1:
            raise ConfigError(f"workers = {workers}: is for --engine inline; ray has --cpus")
        config = with_absolute_paths(RunConfig.parse(parse_overrides(values or [])))
        if engine is Engine.ray:
            tell("starting Flower and Ray, which takes 10 to 20 seconds")
            run_ray(config, clients, cpus=cpus, tell=tell)
        else:
            run_inline(config, clients, batching=batching, workers=workers, tell=tell)


@app.command(short_help="Run strategies with several seeds and compare them.")
def compare(
    strategies: Annotated[
        str, typer.Option(help="Names separated by commas: sckm-select,uniform,round-robin.")
    ],
    seeds: Annotated[int, typer.Option(help="Runs per strategy, each with another seed.")] = 5,
    clients: Clients = 10,
    values: Values = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results; by default one under runs/ that depends on what is "
            "compared, so that the same command goes on where it was stopped."
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="Accuracy for 'rounds to' and 'bytes to'; by default the highest all runs reach."
        ),
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; by default one per CPU.")
    ] = None,
    batching: Batching = True,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Run on this Ray cluster (its nodes have muster installed)."),
    ] = None,
) -> None:
    """Run every strategy with every seed in parallel, then show a table and write figures.

    Finished runs are kept: after an interruption the same command does the rest.

    Example: muster compare --strategies sckm-select,uniform --seeds 5 -c num-server-rounds=50
    """
    with told_in_one_line():
        from simulation.compare import is_finished, make_folder, plan, run_jobs
        from simulation.overrides import parse_overrides

        _check_target(target)
        names = [name.strip() for name in strategies.split(",") if name.strip()]
        given = parse_overrides(values or [])
        name = _folder_name(names, seeds, clients, given, batching)
        folder = (out or Path("runs") / name).absolute()
        jobs = plan(
            given,
            strategies=names,
            seeds=seeds,
            num_clients=clients,
            out=folder,
            batching=batching,
        )
        todo = [job for job in jobs if not is_finished(job)]
        make_folder(folder)
        tell(f"results go to {folder}")
        if len(todo) < len(jobs):
            tell(f"{len(jobs) - len(todo)} of {len(jobs)} runs are finished already")
        failed: dict[Path, str] = {}
        with _progress(len(jobs), len(jobs) - len(todo)) as advance:

            def on_done(job: Job, reason: str | None) -> None:
                if reason is not None:
                    failed[job.folder] = reason
                advance(job, reason)

            run_jobs(todo, cpus=cpus, ray_address=ray_address, on_done=on_done)
        finished = [job.folder for job in jobs if job.folder not in failed]
        if finished:
            _show(_load(finished), folder, target)
        if failed:
            fail(f"{len(failed)} of {len(jobs)} runs failed; the same command tries them again")


@app.command(short_help="List the run-config keys.")
def keys(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="As the table in docs/configuration.md.")
    ] = False,
) -> None:
    """List every run-config key: default, what is allowed, what it means."""
    from server.config import RunConfig

    for key, default, allowed, meaning in RunConfig.described():
        value = str(default).lower() if isinstance(default, bool) else repr(default)
        if markdown:
            tell(f"| `{key}` | `{value}` | {allowed} | {meaning} |")
        else:
            tell(f"{key} = {value}\n    {meaning}; {allowed}")


@app.command(short_help="Write one HTML page from any runs.")
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Folders of runs, or folders that contain some.", metavar="FOLDER..."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("report.html"),
    target: Annotated[
        float | None,
        typer.Option(
            help="Accuracy for 'rounds to' and 'bytes to'; by default the highest all runs reach."
        ),
    ] = None,
) -> None:
    """Write one HTML page from any runs; it holds all it shows and needs no network.

    Runs that differ in their seed alone are drawn together.
    """
    with told_in_one_line():
        from simulation.report import write_report

        _check_target(target)
        runs = _load([run for folder in folders for run in _runs_in(folder)])
        write_report(runs, out, target=target)
        tell(f"report: {out.absolute()}")


app.command(short_help="Reproduce the tables and figures of a paper.")(reproduce)
app.command(short_help="Make the keys of a deployment.")(credentials)
app.command(short_help="Find out why a client cannot join.")(doctor)


def _show(runs: Sequence[Run], folder: Path, target: float | None) -> None:
    """Print the table of a comparison; write it, the figures and the report."""
    from simulation.charts import accuracy_chart, picks_chart, traffic_chart
    from simulation.outcomes import common_target, group_runs
    from simulation.report import write_report
    from simulation.table import as_text, comparison_table

    groups: list[Group] = group_runs(runs)
    goal = common_target(runs) if target is None else target
    text = as_text(comparison_table(groups, goal))
    tell(f"\n{text}\n")
    (folder / "comparison.txt").write_text(text + "\n", encoding="utf-8")
    figures = {
        "accuracy.png": accuracy_chart(groups, "accuracy"),
        "worst-client.png": accuracy_chart(groups, "worst"),
        "bytes.png": traffic_chart(groups),
        "picks.png": picks_chart(groups),
    }
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=150)
        tell(f"picture: {folder / name}")
    write_report(runs, folder / "report.html", target=target)
    tell(f"report: {folder / 'report.html'}")


def _folder_name(
    names: Sequence[str], seeds: int, clients: int, given: dict[str, Scalar], batching: bool
) -> str:
    import hashlib
    import json

    text = json.dumps([sorted(names), seeds, clients, sorted(given.items())])
    name = f"compare-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return name if batching else f"{name}-no-batching"


def _runs_in(folder: Path) -> list[Path]:
    """Return the folders of runs at or below `folder`; itself if there is none, for the error."""
    found = sorted(file.parent for file in folder.rglob("rounds.jsonl"))
    return [run for run in found if not run.name.startswith(".")] or [folder]


def _load(folders: Sequence[Path]) -> list[Run]:
    from server.errors import RunAborted
    from server.results import load_run

    try:
        return [load_run(folder) for folder in folders]
    except ValueError as error:
        raise RunAborted(str(error)) from error


@contextmanager
def _progress(total: int, done: int) -> Iterator[Callable[[Job, str | None], None]]:
    """Show a bar on a terminal, and a line a run in any case."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    console = Console()
    columns = ("runs", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("runs", total=total, completed=done)
        finished = done

        def advance(job: Job, reason: str | None) -> None:
            nonlocal finished
            finished += 1
            name = f"{job.config.strategy}, seed {job.config.seed}"
            outcome = f"failed: {reason}" if reason is not None else "finished"
            console.print(
                f"{finished}/{total} {name}: {outcome}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
            bar.advance(task)

        yield advance


def _check_target(target: float | None) -> None:
    from server.config import ConfigError

    if target is not None and not 0 < target <= 1:
        raise ConfigError(f"target = {target:g}: must be in (0, 1]")
