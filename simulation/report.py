"""One HTML page from any runs, with everything in it: it needs no network and no other file."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from server.figures import participation_figure
from server.results import Run
from simulation.charts import accuracy_chart, clusters_chart, picks_chart, traffic_chart
from simulation.outcomes import Group, common_target, differing_keys, group_runs
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
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_PAGE.format(style=_STYLE, body=body), encoding="utf-8")


def _sections(groups: Sequence[Group], table: Table) -> Iterator[str]:
    runs = [run for group in groups for run in group.runs]
    rounds = sum(len(run.rounds) for run in runs)
    count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    names = ", ".join(dict.fromkeys(group.label for group in groups))
    yield f"<h1>Client selection: {escape(names)}</h1>"
    datasets = ", ".join(sorted({str(run.config.get("dataset", "–")) for run in runs}))
    yield f"<p>{count}, {rounds} rounds in all, on {escape(datasets)}.</p>"
    yield "<h2>In numbers</h2>"
    yield _html_table(table.headings, table.rows)
    yield f"<p class=note>{escape(table.note)}</p>"
    yield "<h2>Over rounds</h2><p class=note>Bands reach from the lowest to the highest seed.</p>"
    yield "<div class=charts>"
    yield _vector(accuracy_chart(groups, "accuracy"), "Mean accuracy over rounds")
    yield _vector(accuracy_chart(groups, "worst"), "Accuracy of the worst client over rounds")
    yield _vector(traffic_chart(groups), "Accuracy over bytes sent")
    yield _vector(picks_chart(groups), "Share of all picks by client")
    clusters = clusters_chart(groups)
    if clusters is not None:
        yield _vector(clusters, "Number of clusters over rounds")
    yield "</div>"
    yield "<h2>Who was picked when</h2>"
    for number, group in enumerate(groups):
        if group.runs[0].participation().names:
            seed = group.runs[0].config.get("seed", "–")
            title = f"{group.label}, seed {seed}"
            opened = " open" if number == 0 else ""
            yield f"<details{opened}><summary>{escape(title)}</summary><div class=wide>"
            yield _raster(participation_figure(group.runs[0]), f"Who was picked when: {title}")
            yield "</div></details>"
    yield "<h2>Configuration</h2>"
    yield from _configuration(groups)


def _configuration(groups: Sequence[Group]) -> Iterator[str]:
    first = [group.runs[0] for group in groups]
    differing = ["strategy", *(key for key in differing_keys(first) if key != "strategy")]
    rows = [tuple(str(run.config.get(key, "–")) for key in differing) for run in first]
    seeds = [", ".join(str(run.config.get("seed", "–")) for run in g.runs) for g in groups]
    yield _html_table(
        (*differing, "seeds"), [(*row, seed) for row, seed in zip(rows, seeds, strict=True)]
    )
    hidden = {*differing, "seed", "out"}
    shared = sorted((k, str(v)) for k, v in first[0].config.items() if k not in hidden)
    yield "<details><summary>The same in all runs</summary>"
    yield _html_table(("key", "value"), shared)
    yield "</details><details><summary>Folders</summary><ul>"
    for group in groups:
        yield from (f"<li>{escape(str(run.folder))}</li>" for run in group.runs)
    yield "</ul></details>"


def _html_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _vector(figure: Figure, description: str) -> str:
    buffer = io.StringIO()
    # Text stays text: the file is a third of the size. A fixed salt: one run, one page.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "muster"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return _image("svg+xml", buffer.getvalue().encode(), description)


def _raster(figure: Figure, description: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return _image("png", buffer.getvalue(), description)


def _image(kind: str, data: bytes, description: str) -> str:
    # As an image of its own an SVG's ids cannot clash with another's.
    encoded = base64.b64encode(data).decode()
    return f'<img alt="{escape(description)}" src="data:image/{kind};base64,{encoded}">'


_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 72rem; background: #fff; color: #1a1a1a;
       font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; }
.note { color: #555; font-size: 0.875rem; margin: 0.25rem 0 0.75rem; }
.wide { overflow-x: auto; }
.wide img { min-width: 36rem; max-width: 60rem; width: 100%; }
.charts { display: grid; gap: 1rem;
          grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.charts img { width: 100%; height: auto; }
table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.35rem 0.75rem 0.35rem 0; text-align: left; white-space: nowrap;
         border-bottom: 1px solid #ddd; }
summary { cursor: pointer; padding: 0.35rem 0; }
ul { font-size: 0.875rem; padding-left: 1.25rem; }
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>Muster report</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
