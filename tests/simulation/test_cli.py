import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulation.cli import app

runner = CliRunner()


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_run_writes_a_folder_and_says_where(tmp_path: Path) -> None:
    options = ["run", "-n", "6", "-c", "num-server-rounds=2 local-steps=1", "-c", 'out="r"']
    result = runner.invoke(app, options)
    assert result.exit_code == 0, result.output
    assert "round 2/2" in result.output
    assert f"results: {tmp_path / 'r'}" in result.output
    assert (tmp_path / "r" / "accuracy.png").exists()

    result = runner.invoke(app, ["report", "r", "-o", "page.html"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "-c", "strategy=adcs"], 'strategy="adcs"'),
        (["run", "-c", "thetta=0.5"], "thetta = 0.5: unknown key"),
        (["run", "--workers", "0"], "workers = 0: must be at least 1"),
        (["run", "--engine", "ray", "--workers", "2"], "workers = 2: is for --engine inline"),
        (["run", "-n", "2"], "clients-per-round = 3: must be at most the number of clients, 2"),
        (["run", "-c", 'dataset="image-folder"'], "set data-dir"),
        (["report", "absent"], "absent is not the folder of a run"),
        (["report", ".", "--target", "80"], "target = 80: must be in (0, 1]"),
        (["compare", "--strategies", "best", "--seeds", "1"], "strategy = 'best'"),
        (["compare", "--strategies", "ocs", "--out", __file__], "must be a folder"),
    ],
)
def test_mistakes_are_one_line_and_a_failure(arguments: list[str], message: str) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 1
    error = result.stderr.strip()
    assert error.startswith("error: ")
    assert message in error
    assert "\n" not in error


@pytest.mark.slow
def test_a_comparison_goes_on_where_it_stopped(tmp_path: Path) -> None:
    options = ["compare", "--seeds", "1", "-c", "num-server-rounds=2 local-steps=1", "--out", "c"]
    result = runner.invoke(app, [*options, "--strategies", "uniform"])
    assert result.exit_code == 0, result.output
    first = (tmp_path / "c/uniform/seed-0/rounds.jsonl").stat().st_mtime_ns
    result = runner.invoke(app, [*options, "--strategies", "uniform,round-robin"])
    assert result.exit_code == 0, result.output
    assert "1 of 2 runs are finished already" in result.output
    assert "2/2 round-robin, seed 0: finished" in result.output
    assert (tmp_path / "c/uniform/seed-0/rounds.jsonl").stat().st_mtime_ns == first
    for name in ("comparison.txt", "report.html", "accuracy.png", "picks.png"):
        assert (tmp_path / "c" / name).exists()


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, simulation.cli; heavy = {'torch', 'ray', 'flwr', 'numpy', 'matplotlib'}; "
        "sys.exit(', '.join(heavy.intersection(sys.modules)) or 0)"
    )
    root = Path(__file__).parents[2]  # where the packages are if they are not installed
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, check=False, text=True
    )
    assert done.stderr.strip() == ""
    assert done.returncode == 0


def test_help_describes_arguments() -> None:
    shown = runner.invoke(app, ["report", "--help"]).output
    assert "Folders of runs, or folders that contain some." in shown
