"""What happens to a run when something breaks in the middle of it, on real Flower processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NAMES = ("a", "b", "c", "d")
CONFIG: Mapping[str, Any] = {
    "strategy": "sckm-select",
    "clients-per-round": 2,
    "min-clients": 4,
    "local-steps": 2,
    "evaluate-every": 100,
    "deadline": 40.0,
    "grace": 8.0,
}


def start(
    deploy: Callable[..., Any], faults: Mapping[str, str] | None = None, *, secure: bool = True
) -> Any:
    """Start a server and four clients with these faults, by client name."""
    it = deploy(secure=secure)
    it.start_server()
    for partition, name in enumerate(NAMES):
        config = f"partition-id={partition} num-partitions=5"
        config += f' mark="{it.folder / name}.mark"'
        if faults and name in faults:
            config += f' fault="{faults[name]}"'
        it.start_client(name, config)
    return it


def rounds(out: Path) -> dict[int, dict[str, Any]]:
    """The lines of `rounds.jsonl` by round; each round has one."""
    file = out / "rounds.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    assert len({line["round"] for line in lines}) == len(lines)
    return {line["round"]: line for line in lines}


def finish(it: Any, run_id: str, out: Path, count: int) -> dict[int, dict[str, Any]]:
    """Wait for a run that must complete, and return its rounds."""
    assert it.wait(run_id, 400) == "finished:completed", it.log("superexec")
    lines = rounds(out)
    assert list(lines) == list(range(1, count + 1))
    assert (out / "model.safetensors").exists()
    return lines


def test_replies_that_cannot_be_used(deploy: Callable[..., Any], faulty_app: Path) -> None:
    faults = {
        "a": "sketch:2:nan sketch:6:huge train:8:nan",
        "b": "sketch:3:infinite sketch:7:raise train:9:infinite",
        "c": "sketch:4:misshapen train:10:misshapen",
        "d": "sketch:5:old train:11:raise",
    }
    it = start(deploy, faults)
    out = it.results / "run"
    # Everybody is picked, so that whoever is to fail in the training phase does train.
    config = {**CONFIG, "clients-per-round": 4, "num-server-rounds": 11, "out": str(out)}
    lines = finish(it, it.submit(faulty_app, config), out, 11)
    reasons = {
        2: ("a", "sketch: sketch holds 1 NaN or infinite values"),
        3: ("b", "sketch: sketch holds 1 NaN or infinite values"),
        4: ("c", "sketch: sketch of float32 with shape"),
        5: ("d", "sketch: the reply is for round 4, not 5"),
        6: ("a", "times the median"),
        7: ("b", "told to raise"),
        8: ("a", "train: array"),
        9: ("b", "train: array"),
        10: ("c", "train: array"),
        11: ("d", "told to raise"),
    }
    for number, line in lines.items():
        name, reason = reasons.get(number, ("", ""))
        assert set(line["failed"]) == ({name} - {""}), line
        assert reason in line["failed"].get(name, ""), line
        assert line["replied"] == [other for other in NAMES if other != name]
        assert "skipped" not in line
