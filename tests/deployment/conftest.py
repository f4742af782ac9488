from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loopback import ROOT, Deployment

APP_FOLDERS = ("client", "server", "strategies", "tasks")


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Callable[..., Deployment]]:
    """Make deployments that end with the test."""
    made: list[Deployment] = []

    def make(*, secure: bool = True) -> Deployment:
        folder = tmp_path / f"deployment-{len(made)}"
        folder.mkdir()
        made.append(Deployment(folder, secure=secure))
        return made[-1]

    yield make
    for deployment in made:
        deployment.close()


@pytest.fixture(scope="session")
def faulty_app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This project's app, with a ClientApp that can be told to misbehave."""
    folder = tmp_path_factory.mktemp("app")
    for name in APP_FOLDERS:
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    shutil.copy(Path(__file__).with_name("faulty.py"), folder / "faulty.py")
    project = (ROOT / "pyproject.toml").read_text()
    assert 'clientapp = "client.app:app"' in project
    project = project.replace('clientapp = "client.app:app"', 'clientapp = "faulty:app"')
    (folder / "pyproject.toml").write_text(project)
    return folder
