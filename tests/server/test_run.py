"""Whole runs on digits in this process, with the real clients."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from safetensors.numpy import load_file

from client.app import app as client_app
from server.app import app as server_app
from server.config import RunConfig
from server.errors import RunAborted, UserError
from server.run import run
from simulation.inline import InlineGrid

CLIENTS = 8
QUICK: dict[str, Any] = {
    "num_server_rounds": 4,
    "clients_per_round": 3,
    "local_steps": 3,
    "sketch_ratio": 0.05,
}


def config(folder: Path, **values: Any) -> RunConfig:
    return RunConfig(**{**QUICK, "out": str(folder), **values})


def play(config: RunConfig, node_ids: list[int] | None = None) -> tuple[Path, list[str]]:
    told: list[str] = []
    grid = InlineGrid(client_app, CLIENTS, run_config=config.to_run_config(), node_ids=node_ids)
    return run(config, grid, wait=0.0, tell=told.append), told


def rounds(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]  # the only thing that is measured
    return lines


def test_a_run_leaves_its_folder_and_a_line_a_round(tmp_path: Path) -> None:
    folder, told = play(config(tmp_path / "run", num_server_rounds=12, learning_rate=0.5))
    assert {file.name for file in folder.iterdir()} >= {
        "config.toml",
        "rounds.jsonl",
        "model.safetensors",
        "checkpoint",
    }
    assert len(list(folder.glob("*.png"))) == 2
    lines = rounds(folder)
    assert [line["round"] for line in lines] == list(range(1, 13))
    per_round = [line for line in told if line.startswith("round ")]
    assert len(per_round) == 12
    for line, text in zip(lines, per_round, strict=True):
        for part in (
            f"sketched {CLIENTS}",
            "picked " + " ".join(line["selected"]),
            "worst client",
            "down",
            "up",
            " s",
        ):
            assert part in text
        assert f"accuracy {line['metrics']['accuracy']:.3f}" in text
        assert len(line["selected"]) == 3
        assert set(line["metrics"]["accuracy-by-client"]) == {str(i) for i in range(CLIENTS)}
    assert lines[-1]["metrics"]["accuracy"] > lines[0]["metrics"]["accuracy"] + 0.2
    assert f"results: {folder}" in told
    assert set(load_file(folder / "model.safetensors")) == {
        "classifier.weight",
        "classifier.bias",
    }


def test_node_ids_and_their_order_change_nothing(tmp_path: Path) -> None:
    first, _ = play(config(tmp_path / "a"))
    second, _ = play(config(tmp_path / "b"), node_ids=[90, 7, 55, 3, 2**60, 11, 12, 4])
    assert rounds(first) == rounds(second)
    assert bits(first) == bits(second)
    other, _ = play(config(tmp_path / "c", seed=1))
    assert bits(other) != bits(first)


def test_reuse_changes_only_the_bytes(tmp_path: Path) -> None:
    with_reuse, _ = play(config(tmp_path / "a"))
    without, _ = play(config(tmp_path / "b", reuse_update=False))
    assert bits(with_reuse) == bits(without)
    a, b = rounds(with_reuse), rounds(without)
    assert [line["selected"] for line in a] == [line["selected"] for line in b]
    # The softmax model: 650 float32 entries; without reuse it goes out to the three again.
    for kept, fresh in zip(a, b, strict=True):
        assert fresh["bytes-down"]["train"] - kept["bytes-down"]["train"] > 3 * 4 * 650
        assert kept["bytes-down"]["train"] < 3 * 4 * 650 / 10


def bits(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"strategy": "adcs", "kernel_every": 3},
        {"strategy": "sckm-cluster", "min_clusters": 2},
        {"aggregator": "fedadam", "strategy": "uniform"},
        {"aggregator": "fedavgm", "strategy": "round-robin", "checkpoint_every": 2},
    ],
    ids=["sckm", "adcs", "cluster", "adam", "momentum"],
)
@pytest.mark.parametrize("damaged", [False, True])
def test_a_resumed_run_equals_an_unbroken_one(
    tmp_path: Path, values: dict[str, Any], damaged: bool
) -> None:
    whole, _ = play(config(tmp_path / "whole", num_server_rounds=6, **values))
    play(config(tmp_path / "broken", num_server_rounds=4, evaluate_every=1, **values))
    if damaged:
        newest = max((tmp_path / "broken" / "checkpoint").iterdir())
        newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    again, told = play(config(tmp_path / "broken", num_server_rounds=6, resume="auto", **values))
    every = values.get("checkpoint_every", 1)
    assert f"going on after round {4 - every * damaged}" in told
    lines = rounds(again), rounds(whole)
    for line in (*lines[0], *lines[1]):
        # Names are asked for again: after a restart the nodes may be others.
        line["bytes-down"].pop("query", None)
        line["bytes-up"].pop("query", None)
    assert lines[0] == lines[1]
    assert bits(again) == bits(whole)


def test_a_finished_run_resumed_is_the_same_run(tmp_path: Path) -> None:
    folder, _ = play(config(tmp_path / "run"))
    shutil.copytree(folder, tmp_path / "copy")
    play(config(tmp_path / "run", resume="auto"))
    assert rounds(folder) == rounds(tmp_path / "copy")
    assert bits(folder) == bits(tmp_path / "copy")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"clients_per_round": 9},
            "clients-per-round = 9: 8 clients are connected after 0 s; allowed is at most 8",
        ),
        ({"sketch_layers": "head"}, "sketch-layers = 'head': sketch layer 'head' matches no array"),
        ({"sketch_layers": ""}, "sketch-layers = '': sketch layer '' matches no array"),
        ({"dataset": "image-folder", "data_dir": "/nowhere"}, "data-dir"),
        ({"dataset": "no_such_module:f"}, "dataset 'no_such_module:f': cannot import"),
        ({"model": "no_such_module:f"}, "model 'no_such_module:f': cannot import"),
    ],
)
def test_a_run_that_cannot_go_on_is_one_line(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(RunAborted) as caught:
        play(config(tmp_path / "run", **values))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_skipped_rounds_are_told_and_nothing_but_skipped_rounds_is_an_error(tmp_path: Path) -> None:
    """With a quorum of all and a client whose partition cannot be, every round is skipped."""
    settings = config(tmp_path / "run", quorum=1.0, num_server_rounds=2)
    grid = InlineGrid(client_app, CLIENTS, run_config=settings.to_run_config())
    grid._contexts[1003].node_config["partition-id"] = 77
    told: list[str] = []
    with pytest.raises(RunAborted, match="every round was skipped; the last: 7 of 8 clients"):
        run(settings, grid, wait=0.0, tell=told.append)
    assert len(rounds(tmp_path / "run")) == 2
    for line in rounds(tmp_path / "run"):
        assert line["skipped"] == "7 of 8 clients answered the roll call, quorum 8"
        (reason,) = line["failed"].values()
        assert "77" in reason
    assert any("skipped: 7 of 8" in line for line in told)


def test_flowers_own_messages_return_after_the_run(tmp_path: Path) -> None:
    logger = logging.getLogger("flwr")
    level = logger.level
    play(config(tmp_path / "run", num_server_rounds=1))
    assert logger.level == level


def test_the_server_app_tells_a_mistake_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    logger = logging.getLogger("flwr")
    filters = list(logger.filters)
    values: Any = dataclasses.asdict(RunConfig())
    context = Context(1, 0, {}, RecordDict(), {**values, "seed": 1})
    grid = InlineGrid(client_app, 2)
    try:
        with pytest.raises(UserError):
            server_app(grid, context)
    finally:
        logger.filters[:] = filters
    shown = capsys.readouterr().out
    assert shown.startswith("error: num_server_rounds = 30: unknown key; did you mean")
    assert shown.count("\n") == 1
