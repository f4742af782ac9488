"""`muster reproduce`: run the experiments of a paper and say what came out."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulation.terminal import fail, tell, told_in_one_line

if TYPE_CHECKING:
    from simulation.reproduce.item import Findings, Item, Options

__all__ = ["PAPERS", "Paper", "reproduce"]


@dataclasses.dataclass(frozen=True)
class Paper:
    """A paper: the module with its `ITEMS`, its name in a title, and the scale by default."""

    module: str
    title: str
    full: bool


PAPERS = {
    "adcs": Paper("simulation.reproduce.adcs", "ADCS", full=True),
    "sckm": Paper("simulation.reproduce.sckm", "SCKM", full=False),
}


class PaperName(StrEnum):
    """The papers."""

    adcs = "adcs"
    sckm = "sckm"


def reproduce(
    paper: Annotated[PaperName, typer.Argument(help="adcs or sckm.", show_choices=False)],
    items: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ITEM]...", help="Tables and figures as listed above; all of them by default."
        ),
    ] = None,
    full: Annotated[
        bool | None,
        typer.Option(
            "--full/--preset",
            help="At the paper's own scale, or at one that a small machine can do. By default adcs "
            "is full (all of it: about 2½ hours on two free CPUs) and sckm a preset.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs per setting; with one there are no error bars.")
    ] = 3,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for runs, pictures and report; by default runs/reproduce-PAPER."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the data set is, if not in its usual place.")
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; by default one per CPU.")
    ] = None,
) -> None:
    """Reproduce a paper's tables and figures, and judge its statements by them.

    Items of adcs: figure-1 (all methods), figure-2 (theta), figure-3 (R),
    table-1 (shares of the picks).

    Items of sckm: figure-2, figure-3, figure-4, figure-5, table-3, table-4,
    table-5, table-6.

    Finished runs are kept: after an interruption the same command does the rest.
    Tables are printed; report.html, report.txt and the pictures are in the folder.
    A difference counts if it exceeds two standard errors.

    Example: muster reproduce adcs figure-1 table-1 --preset
    """
    with told_in_one_line():
        chosen = PAPERS[paper]
        wanted = _chosen(paper, items or [])

        from simulation.reproduce.item import Options

        options = Options(
            out=(out or Path("runs") / f"reproduce-{paper}").absolute(),
            full=chosen.full if full is None else full,
            seeds=seeds,
            data_dir=str(data_dir.expanduser().absolute()) if data_dir else "",
            cpus=cpus,
            tell=tell,
        )
        _reproduce(chosen, wanted, options)


def _chosen(paper: str, names: Sequence[str]) -> list[Item]:
    """Return the items of these names, all without any, in the paper's order."""
    from server.config import ConfigError

    items = _items(paper)
    allowed = [item.name for item in items]
    for name in names:
        if name not in allowed:
            raise ConfigError(f"{paper} has no item {name!r}: must be one of {', '.join(allowed)}")
    return [item for item in items if not names or item.name in names]


def _items(paper: str) -> tuple[Item, ...]:
    items: tuple[Item, ...] = importlib.import_module(PAPERS[paper].module).ITEMS
    return items


def _reproduce(paper: Paper, items: Sequence[Item], options: Options) -> None:
    """Run the items; one that fails does not stop the others; a note is told once."""
    from server.errors import UserError
    from simulation.compare import make_folder
    from simulation.reproduce.report import findings_text, write_findings

    make_folder(options.out)
    scale = "the paper's scale" if options.full else "a preset"
    tell(f"{paper.title}, {scale}: {', '.join(item.name for item in items)}")
    tell(f"results go to {options.out}")
    if options.seeds < 2:
        tell("one seed: no error bars, and no statement can be judged")
    title = f"The {paper.title} paper, reproduced"
    found: list[Findings] = []
    reasons: dict[str, list[str]] = {}
    for item in items:
        tell(f"\n{item.name}: {item.title}")
        try:
            findings = item.run(options)
        except UserError as error:
            reasons.setdefault(str(error), []).append(item.name)
            continue
        told = {note for earlier in found for note in earlier.notes}
        new = tuple(note for note in findings.notes if note not in told)
        found.append(dataclasses.replace(findings, notes=new))
        tell(f"\n{findings_text(found[-1])}\n")
        write_findings(title, found, options.out)
    if found:
        tell(f"\nreport: {options.out / 'report.html'}")
    if reasons:
        fail("; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items()))
