"""Findings as text for a terminal, as pictures and as one HTML page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from simulation.page import html_table, vector_image, write_page
from simulation.reproduce.item import Claim, Findings
from simulation.table import as_text

__all__ = ["findings_text", "write_findings"]

_WIDTH = 100
_INDENT = " " * 7


def findings_text(findings: Findings) -> str:
    """Return one item's notes, tables and claims in aligned lines."""
    parts = [f"{findings.title}\n{'=' * len(findings.title)}"]
    parts += [textwrap.fill(note, _WIDTH, subsequent_indent="  ") for note in findings.notes]
    parts += [as_text(table) for table in findings.tables]
    parts += ["\n".join(line for claim in findings.claims for line in _claim_lines(claim))]
    return "\n\n".join(part for part in parts if part)


def write_findings(title: str, found: Sequence[Findings], out: Path) -> None:
    """Write `report.html`, `report.txt` and each picture as PNG.

    Parameters
    ----------
    title : str
        Of the page.
    found : sequence of Findings
        Of each item that was reproduced.
    out : Path
        The folder; made if need be.

    Raises
    ------
    OSError
        If a file cannot be written.
    """
    write_page(out / "report.html", "\n".join(_sections(title, found)), title=title)
    text = "\n\n\n".join([title, *map(findings_text, found)])
    (out / "report.txt").write_text(f"{text}\n", encoding="utf-8")
    for findings in found:
        for picture in findings.pictures:
            picture.figure.savefig(out / f"{picture.name}.png", dpi=150)


def _claim_lines(claim: Claim) -> list[str]:
    return [
        *textwrap.wrap(f"{_word(claim)}: {claim.text}", _WIDTH, subsequent_indent=_INDENT),
        *textwrap.wrap(claim.numbers, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT),
    ]


def _word(claim: Claim) -> str:
    return {True: "holds", False: "fails", None: "open"}[claim.holds]


def _sections(title: str, found: Sequence[Findings]) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1>"
    claims = [claim for findings in found for claim in findings.claims]
    if claims:
        yield f"<p>{escape(_summary(claims))}</p>"
    for findings in found:
        yield f"<h2>{escape(findings.title)}</h2>"
        yield from (f"<p class=note>{escape(note)}</p>" for note in findings.notes)
        if findings.pictures:
            yield "<div class=charts>"
            yield from (vector_image(p.figure, p.description) for p in findings.pictures)
            yield "</div>"
        for table in findings.tables:
            yield html_table(table.headings, table.rows)
            yield f"<p class=note>{escape(table.note)}</p>"
        if findings.claims:
            yield "<ul class=claims>"
            for claim in findings.claims:
                word, text, numbers = map(escape, (_word(claim), claim.text, claim.numbers))
                yield f"<li><b class={word}>{word}</b> {text}<br><small>{numbers}</small></li>"
            yield "</ul>"


def _summary(claims: Sequence[Claim]) -> str:
    counts = [sum(claim.holds is holds for claim in claims) for holds in (True, False, None)]
    words = (("holds", "hold"), ("fails", "fail"), ("is open", "are open"))
    holding, failing, undecided = (
        f"{count} {one if count == 1 else many}"
        for count, (one, many) in zip(counts, words, strict=True)
    )
    return (
        f"Of {len(claims)} statements {holding}, {failing} and {undecided}: a difference of at "
        "most two standard errors, or one seed without any, decides nothing."
    )
