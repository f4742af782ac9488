"""The whole of it: Flower's SuperLink, Ray, the ServerApp and the ClientApp of this repository."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client.app import app
from server.config import RunConfig
from server.run import run
from simulation.flower import RunFailed, SuperLink, superlink
from simulation.inline import InlineGrid

ROOT = Path(__file__).parents[2]
CLIENTS = 4
QUICK: dict[str, Any] = {"num-server-rounds": 3, "local-steps": 2, "clients-per-round": 2}


@pytest.fixture(scope="module")
def link() -> Iterator[SuperLink]:
    with superlink() as started:
        yield started


def inline(folder: Path, seed: int) -> Path:
    config = RunConfig.parse({**QUICK, "seed": seed, "out": str(folder)})
    grid = InlineGrid(app, CLIENTS, run_config=config.to_run_config())
    return run(config, grid, wait=0.0, tell=lambda line: None)


def rounds(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    return lines


def model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.timeout(600)  # two starts of Ray, which a busy machine makes long
def test_one_seed_gives_one_run_whatever_the_number_of_actors(
    link: SuperLink, tmp_path: Path
) -> None:
    told: list[str] = []
    for cpus in (1, 2):
        values = {**QUICK, "out": str(tmp_path / f"ray-{cpus}")}
        link.run(ROOT, values, num_clients=CLIENTS, cpus=cpus, on_line=told.append)
    same = inline(tmp_path / "inline", seed=0)
    assert len(rounds(same)) == 3
    for cpus in (1, 2):
        folder = tmp_path / f"ray-{cpus}"
        assert rounds(folder) == rounds(same)
        assert model(folder) == model(same)
        assert f"results: {folder}" in told
    assert sum(line.startswith("round ") for line in told) == 6
    assert model(inline(tmp_path / "other", seed=1)) != model(same)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sketch-ratio": 2.0}, "sketch-ratio = 2.0: must be in (0, 1]"),
        (
            {"clients-per-round": 9},
            "9 clients are needed (clients-per-round = 9), 4 are connected after 10 s",
        ),
        (
            {"dataset": "image-folder", "data-dir": "/nowhere"},
            "data-dir '/nowhere': there is no such folder or file",
        ),
    ],
)
def test_bad_input_is_one_line_also_in_flowers_own_log(
    link: SuperLink, tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    """The log is what `flwr run . --stream` shows."""
    values = {**QUICK, "out": str(tmp_path / "run"), **values}
    with pytest.raises(RunFailed) as failed:
        link.run(ROOT, values, num_clients=CLIENTS, cpus=1, on_line=lambda line: None)
    assert str(failed.value) == message
    assert failed.value.log.splitlines().count(f"error: {message}") == 1
    assert "Traceback" not in failed.value.log
    assert 'File "' not in failed.value.log
