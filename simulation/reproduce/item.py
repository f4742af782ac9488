"""What a reproduced table or figure is: a function from options to findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from server.config import Scalar
from simulation.table import Table

__all__ = ["BANDS", "Claim", "Findings", "Item", "Options", "Picture", "Setting"]

# A note for findings with pictures over seeds.
BANDS = "In pictures lines are means over seeds; bands reach from the lowest to the highest."


@dataclass(frozen=True)
class Options:
    """How to reproduce.

    Attributes
    ----------
    out : Path
        Folder for runs, pictures and the report.
    full : bool
        At the paper's own scale, else with a preset that fits a small machine.
    seeds : int
        Runs per setting, at least 1.
    data_dir : str
        Where the data set is, if not in its usual place.
    cpus : int, optional
        Runs at a time; by default one per CPU.
    tell : callable
        Gets each line of the progress.
    """

    out: Path
    full: bool
    seeds: int = 3
    data_dir: str = ""
    cpus: int | None = None
    tell: Callable[[str], None] = print


@dataclass(frozen=True)
class Setting:
    """One line of a comparison, run once per seed.

    `label` names it in legends, tables and its folder; `values` are run-config values.
    """

    label: str
    values: Mapping[str, Scalar]
    num_clients: int


@dataclass(frozen=True)
class Claim:
    """A statement of the paper or of ours, and what our runs say of it.

    `holds` is None where the runs cannot tell: a difference of less than two standard errors.
    `numbers` are those it was judged by.
    """

    text: str
    holds: bool | None
    numbers: str


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its file and a description for those who cannot see it."""

    name: str
    figure: Figure
    description: str


@dataclass(frozen=True)
class Findings:
    """What an item found; `notes` say what was run and every departure from the paper."""

    title: str
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper: `name` as on the command line, such as `figure-1`."""

    name: str
    title: str
    run: Callable[[Options], Findings]
