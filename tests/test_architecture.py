"""Which folder may import which: the table of the design, read from the code."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OWN = {"strategies", "tasks", "client", "server", "simulation"}
LEARNING = {"torch", "torchvision", "flwr_datasets", "datasets"}

# Of the project's own folders and of the heavy libraries, what each folder must not import.
FORBIDDEN = {
    "strategies/selection": OWN - {"strategies"} | LEARNING | {"flwr"},
    "strategies": OWN - {"strategies"} | LEARNING | {"ray"},
    "tasks": OWN - {"tasks"} | {"flwr", "ray"},
    "client": {"server", "simulation", "ray"},
    "server": {"client", "simulation", "ray"},
}


def files(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found
    return found


def imported(file: Path) -> set[str]:
    """Return the modules a file imports anywhere in it, functions included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_a_folder_imports_only_what_it_may(folder: str) -> None:
    wrong = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in files(folder)
        for name in imported(file)
        if name.split(".")[0] in FORBIDDEN[folder]
    }
    assert wrong == set()


def test_selection_knows_nothing_of_the_strategies_around_it() -> None:
    wrong = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in files("strategies/selection")
        for name in imported(file)
        if name.split(".")[0] == "strategies" and not name.startswith("strategies.selection")
    }
    assert wrong == set()


def test_every_module_says_what_it_exports() -> None:
    silent = [
        str(file.relative_to(ROOT))
        for folder in OWN
        for file in files(folder)
        if file.name not in ("__init__.py", "__main__.py") and "__all__" not in file.read_text()
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("client.app", {"torch", "sklearn", "matplotlib", "ray"}),
        ("server.app", {"torch", "sklearn", "matplotlib", "ray"}),
        ("strategies", {"torch", "sklearn", "matplotlib", "ray"}),
    ],
)
def test_importing_an_app_loads_nothing_heavy(module: str, absent: set[str]) -> None:
    """In a deployment every message starts a process: imports are paid each time."""
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & {absent!r}))"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.stdout.split() == []


def test_selection_loads_neither_flower_nor_torch() -> None:
    """Even with what it imports in turn; its parent package, which is Flower's, set aside."""
    code = (
        "import sys, types\n"
        "parent = types.ModuleType('strategies'); parent.__path__ = ['strategies']\n"
        "sys.modules['strategies'] = parent\n"
        "import strategies.selection, strategies.selection.selectors\n"
        "print(*sorted(set(sys.modules) & {'flwr', 'torch'}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert ran.stdout.split() == []
