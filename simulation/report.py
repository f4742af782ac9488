"""One HTML page from any runs, with everything in it: it needs no network and no other file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from server.figures import participation_figure
from server.results import Run
from simulation.charts import accuracy_chart, clusters_chart, picks_chart, traffic_chart
from simulation.outcomes import Group, common_target, differing_keys, group_runs
from simulation.page import html_table, raster_image, vector_image, write_page
from simulation.table import Table, comparison_table

__all__ = ["write_report"]


def write_report(runs: Sequence[Run], file: Path, *, target: float | None = None) -> None:
    """Write the page.

    Parameters
    ----------
    runs : sequence of Run
        At least one. Runs that differ in their seed alone are drawn as one line with a band.
    file : Path
        The page; its folder is made if need be.
    target : float, optional
        Accuracy in [0, 1] that "rounds to" and "bytes to" refer to; by default the highest that all
        runs reached.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    groups = group_runs(runs)
    goal = common_target(runs) if target is None else target
    body = "\n".join(_sections(groups, comparison_table(groups, goal)))
    write_page(file, body, title="Muster report")


def _sections(groups: Sequence[Group], table: Table) -> Iterator[str]:
    runs = [run for group in groups for run in group.runs]
    rounds = sum(len(run.rounds) for run in runs)
    count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    names = ", ".join(dict.fromkeys(group.label for group in groups))
    yield f"<h1>Client selection: {escape(names)}</h1>"
    datasets = ", ".join(sorted({str(run.config.get("dataset", "–")) for run in runs}))
    yield f"<p>{count}, {rounds} rounds in all, on {escape(datasets)}.</p>"
    yield "<h2>In numbers</h2>"
    yield html_table(table.headings, table.rows)
    yield f"<p class=note>{escape(table.note)}</p>"
    yield "<h2>Over rounds</h2><p class=note>Bands reach from the lowest to the highest seed.</p>"
    yield "<div class=charts>"
    yield vector_image(accuracy_chart(groups, "accuracy"), "Mean accuracy over rounds")
    yield vector_image(accuracy_chart(groups, "worst"), "Accuracy of the worst client over rounds")
    yield vector_image(traffic_chart(groups), "Accuracy over bytes sent")
    yield vector_image(picks_chart(groups), "Share of all picks by client")
    clusters = clusters_chart(groups)
    if clusters is not None:
        yield vector_image(clusters, "Number of clusters over rounds")
    yield "</div>"
    yield "<h2>Who was picked when</h2>"
    for number, group in enumerate(groups):
        if group.runs[0].participation().names:
            seed = group.runs[0].config.get("seed", "–")
            title = f"{group.label}, seed {seed}"
            opened = " open" if number == 0 else ""
            yield f"<details{opened}><summary>{escape(title)}</summary><div class=wide>"
            yield raster_image(participation_figure(group.runs[0]), f"Who was picked when: {title}")
            yield "</div></details>"
    yield "<h2>Configuration</h2>"
    yield from _configuration(groups)


def _configuration(groups: Sequence[Group]) -> Iterator[str]:
    first = [group.runs[0] for group in groups]
    differing = ["strategy", *(key for key in differing_keys(first) if key != "strategy")]
    rows = [tuple(str(run.config.get(key, "–")) for key in differing) for run in first]
    seeds = [", ".join(str(run.config.get("seed", "–")) for run in g.runs) for g in groups]
    yield html_table(
        (*differing, "seeds"), [(*row, seed) for row, seed in zip(rows, seeds, strict=True)]
    )
    hidden = {*differing, "seed", "out"}
    shared = sorted((k, str(v)) for k, v in first[0].config.items() if k not in hidden)
    yield "<details><summary>The same in all runs</summary>"
    yield html_table(("key", "value"), shared)
    yield "</details><details><summary>Folders</summary><ul>"
    for group in groups:
        yield from (f"<li>{escape(str(run.folder))}</li>" for run in group.runs)
    yield "</ul></details>"
