import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from server.results import Run
from simulation.charts import accuracy_chart, clusters_chart, picks_chart, traffic_chart
from simulation.outcomes import group_runs
from simulation.report import write_report


def run(strategy: str, seed: int, *, clusters: bool = False, evaluated: bool = True) -> Run:
    names = [f"c{i}" for i in range(5)]
    rounds: list[dict[str, Any]] = []
    for number in range(1, 7):
        accuracy = number / (7 + seed)
        selected = [names[(number + seed) % 5]]
        line: dict[str, Any] = {
            "round": number,
            "eligible": names,
            "selected": selected,
            "replied": selected,
            "bytes-down": {"train": 1000},
            "bytes-up": {"train": 500},
            "metrics": {"accuracy": accuracy, "worst-accuracy": accuracy / 2} if evaluated else {},
        }
        rounds.append(line | ({"clusters": 1 + number % 3} if clusters else {}))
    return Run(Path(f"runs/<{strategy}>"), {"strategy": strategy, "seed": seed}, rounds)


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.images: list[dict[str, str]] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        if tag == "img":
            self.images.append(values)
        self.links += [values[key] for key in ("src", "href") if key in values]
        if tag not in ("img", "meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_holds_all_it_shows(tmp_path: Path) -> None:
    runs = [run("sckm-cluster", 0, clusters=True), run("sckm-cluster", 1, clusters=True)]
    file = tmp_path / "new" / "report.html"
    write_report([*runs, run("uniform", 0)], file)
    text = file.read_text()
    page = Page(text)
    assert page.open == []
    assert all(link.startswith("data:") for link in page.links)
    assert len(page.images) == 5 + 2  # charts with clusters, and a picture of picks a group
    assert all(image["alt"] for image in page.images)
    assert "runs/&lt;uniform&gt;" in text
    assert "<uniform>" not in text


def test_one_run_one_page(tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        write_report([run("uniform", 0)], tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_text_in_charts_stays_text(tmp_path: Path) -> None:
    write_report([run("uniform", 0)], tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text())
    encoded = next(image["src"] for image in page.images if "svg" in image["src"])
    svg = base64.b64decode(encoded.partition(",")[2]).decode()
    assert re.search(r">\s*round\s*</text>", svg)


def test_runs_without_evaluations_can_be_reported(tmp_path: Path) -> None:
    write_report([run("uniform", 0, evaluated=False)], tmp_path / "report.html")
    assert "uniform" in (tmp_path / "report.html").read_text()


def test_bands_reach_from_the_lowest_to_the_highest_seed() -> None:
    (axes,) = accuracy_chart(group_runs([run("uniform", s) for s in (0, 1, 3)]), "accuracy").axes
    (line,) = axes.lines
    assert line.get_ydata()[-1] == pytest.approx((6 / 7 + 6 / 8 + 6 / 10) / 3)
    (band,) = axes.collections
    at_end = [y for x, y in band.get_paths()[0].vertices if x == 6]
    assert (min(at_end), max(at_end)) == (pytest.approx(6 / 10), pytest.approx(6 / 7))


def test_seeds_of_different_length_are_drawn_where_both_are() -> None:
    short = run("uniform", 1)
    cut = Run(short.folder, short.config, short.rounds[:4])
    groups = group_runs([run("uniform", 0), cut])
    for figure in (accuracy_chart(groups, "worst"), traffic_chart(groups)):
        assert len(figure.axes[0].lines[0].get_xdata()) == 4


def test_every_chart_has_axes_and_a_legend() -> None:
    groups = group_runs([run("sckm-cluster", 0, clusters=True), run("uniform", 0)])
    figures = [
        accuracy_chart(groups, "accuracy"),
        accuracy_chart(groups, "worst"),
        traffic_chart(groups),
        picks_chart(groups),
        clusters_chart(groups),
    ]
    for figure in figures:
        assert figure is not None
        (axes,) = figure.axes
        assert axes.get_xlabel()
        assert axes.get_ylabel()
        assert figure.legends[0].get_texts()[0].get_text() == "sckm-cluster"
    assert clusters_chart(group_runs([run("uniform", 0)])) is None


def test_shares_of_picks_add_up() -> None:
    (axes,) = picks_chart(group_runs([run("uniform", 0)])).axes
    assert sum(axes.lines[0].get_ydata()) == pytest.approx(100)
