from html.parser import HTMLParser
from pathlib import Path

from matplotlib.figure import Figure

from simulation.reproduce.item import Claim, Findings, Picture
from simulation.reproduce.report import findings_text, write_findings
from simulation.table import Table


def findings() -> Findings:
    figure = Figure()
    figure.subplots().plot([0, 1], [0, 1])
    return Findings(
        title="Figure <1>",
        notes=("a & b",),
        tables=(Table(("method", "x"), (("<m>", "1"), ("longer", "2")), "of x"),),
        pictures=(Picture("figure-1", figure, "x < y"),),
        claims=(
            Claim("a above b", True, "2 against 1"),
            Claim("b above c", False, "1 against 3"),
            Claim("c < d", None, "3 against 3"),
        ),
    )


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "img":
            self.images.append(values)
        self.links += [str(values[key]) for key in ("src", "href") if key in values]
        if tag not in ("img", "meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def test_text_has_all_of_it_in_aligned_lines() -> None:
    lines = findings_text(findings()).splitlines()
    assert lines[:4] == ["Figure <1>", "==========", "", "a & b"]
    assert "method  x" in lines
    assert "<m>     1" in lines
    assert lines[-6:] == [
        "holds: a above b",
        "       2 against 1",
        "fails: b above c",
        "       1 against 3",
        "open: c < d",
        "       3 against 3",
    ]


def test_without_notes_tables_and_claims_there_are_no_gaps() -> None:
    assert findings_text(Findings("Title")) == "Title\n====="


def test_the_page_holds_all_it_shows(tmp_path: Path) -> None:
    out = tmp_path / "new"
    write_findings("Paper & co", [findings()], out)
    page = Page((out / "report.html").read_text())
    assert page.open == []
    assert all(link.startswith("data:") for link in page.links)
    assert [image["alt"] for image in page.images] == ["x < y"]
    for word in ("Paper & co", "Figure <1>", "a & b", "<m>", "c < d", "1 against 3"):
        assert word in page.words
    assert any(
        word.startswith("Of 3 statements 1 holds, 1 fails and 1 is open") for word in page.words
    )
    assert (out / "figure-1.png").read_bytes().startswith(b"\x89PNG")
    text = (out / "report.txt").read_text()
    assert text.startswith("Paper & co\n")
    assert findings_text(findings()) in text
