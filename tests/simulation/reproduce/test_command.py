import importlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.errors import RunAborted
from simulation.cli import app
from simulation.reproduce import command
from simulation.reproduce.command import PAPERS
from simulation.reproduce.item import Claim, Findings, Item, Options

runner = CliRunner()


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """Give both papers three items that do nothing but note their options; the first fails."""
    given: list[Options] = []

    def item(name: str) -> Item:
        def run(options: Options) -> Findings:
            given.append(options)
            if name == "broken":
                raise RunAborted("no luck")
            return Findings(f"Found by {name}", ("told once",), claims=(Claim("c", True, "n"),))

        return Item(name, f"what {name} is", run)

    items = tuple(map(item, ("broken", "figure-1", "table-1")))
    monkeypatch.setattr(command, "_items", lambda paper: items)
    return given


def test_items_are_run_and_reported(tmp_path: Path, options: list[Options]) -> None:
    result = runner.invoke(app, ["reproduce", "adcs", "table-1", "figure-1"])
    assert result.exit_code == 0, result.output
    assert [o.full for o in options] == [True, True]
    assert options[0].out == tmp_path / "runs" / "reproduce-adcs"
    assert (options[0].seeds, options[0].data_dir, options[0].cpus) == (3, "", None)
    # In the paper's order, whatever that on the command line.
    assert result.output.index("Found by figure-1") < result.output.index("Found by table-1")
    assert result.output.count("told once") == 1
    assert "Found by table-1" in (options[0].out / "report.txt").read_text()
    assert (options[0].out / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "full"),
    [
        (["adcs", "--preset"], False),
        (["adcs"], True),
        (["sckm"], False),
        (["sckm", "--full"], True),
    ],
)
def test_each_paper_has_its_own_scale_by_default(
    options: list[Options], arguments: list[str], full: bool
) -> None:
    result = runner.invoke(app, ["reproduce", *arguments, "table-1"])
    assert result.exit_code == 0, result.output
    assert [o.full for o in options] == [full]


def test_options_reach_the_items(tmp_path: Path, options: list[Options]) -> None:
    arguments = ["--seeds", "1", "--out", "o", "--data-dir", "d", "--cpus", "2"]
    result = runner.invoke(app, ["reproduce", "sckm", "table-1", *arguments])
    assert result.exit_code == 0, result.output
    assert options[0].out == tmp_path / "o"
    assert options[0].data_dir == str(tmp_path / "d")
    assert (options[0].seeds, options[0].cpus) == (1, 2)
    assert "one seed: no error bars" in result.output


def test_what_fails_does_not_stop_the_rest(options: list[Options]) -> None:
    result = runner.invoke(app, ["reproduce", "adcs"])
    assert result.exit_code == 1
    assert result.stderr.strip() == "error: broken: no luck"
    assert len(options) == 3
    assert "Found by table-1" in (options[0].out / "report.txt").read_text()


def test_an_out_that_is_no_folder_is_told_before_anything_runs(
    tmp_path: Path, options: list[Options]
) -> None:
    (tmp_path / "taken").touch()
    result = runner.invoke(app, ["reproduce", "adcs", "--out", "taken"])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: --out = {tmp_path / 'taken'}: must be a folder")
    assert result.stderr.count("\n") == 1
    assert options == []


def test_an_unknown_item_is_one_line() -> None:
    result = runner.invoke(app, ["reproduce", "adcs", "figure-7"])
    assert result.exit_code == 1
    assert result.stderr.strip() == (
        "error: adcs has no item 'figure-7': must be one of figure-1, figure-2, figure-3, table-1"
    )


@pytest.mark.parametrize("arguments", [[], ["fedavg"], ["adcs", "--seeds", "0"]])
def test_what_typer_refuses(arguments: list[str]) -> None:
    assert runner.invoke(app, ["reproduce", *arguments]).exit_code == 2


def test_missing_data_is_one_line_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("simulation.reproduce.runs.run_jobs")
    result = runner.invoke(app, ["reproduce", "adcs", "--data-dir", "absent"])
    assert result.exit_code == 1
    error = result.stderr.strip()
    assert error.startswith("error: figure-1, figure-2, figure-3, table-1: data-dir ")
    assert "absent" in error
    assert "\n" not in error


@pytest.mark.parametrize("paper", PAPERS)
def test_help_names_every_item(paper: str) -> None:
    pytest.importorskip(PAPERS[paper].module)
    text = runner.invoke(app, ["reproduce", "--help"]).output
    listed = text.partition(f"Items of {paper}:")[2].partition(".")[0]
    for item in importlib.import_module(PAPERS[paper].module).ITEMS:
        assert item.name in listed
