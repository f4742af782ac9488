"""What happens to a run when something breaks in the middle of it, on real Flower processes.

Every message starts a Python process that imports torch, so on a busy machine a phase may take half
a minute; nothing here depends on how long.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NAMES = ("a", "b", "c", "d")
CONFIG: Mapping[str, Any] = {
    "strategy": "sckm-select",
    # Everybody is picked, so that whoever is to fail in the training phase does train.
    "clients-per-round": 4,
    "local-steps": 2,
    "evaluate-every": 100,
    "quorum": 0.25,
    "deadline": 300.0,
    "grace": 25.0,
}


def start(
    deploy: Callable[..., Any], faults: Mapping[str, str] | None = None, *, secure: bool = True
) -> Any:
    """Start a server and four clients with these faults, by client name."""
    it = deploy(secure=secure)
    it.start_server()
    for name in NAMES:
        add_client(it, name, (faults or {}).get(name, ""))
    return it


def add_client(it: Any, name: str, fault: str = "") -> None:
    """Start one of up to five clients."""
    config = f"partition-id={'abcde'.index(name)} num-partitions=5"
    it.start_client(name, f'{config} mark="{mark(it, name)}" fault="{fault}"')


def mark(it: Any, name: str) -> Path:
    """The file a client makes when it meets the fault `mark`."""
    path: Path = it.folder / f"{name}.mark"
    return path


def rounds(out: Path) -> dict[int, dict[str, Any]]:
    """The lines of `rounds.jsonl` by round; each round has one."""
    file = out / "rounds.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    assert len({line["round"] for line in lines}) == len(lines)
    return {line["round"]: line for line in lines}


def submit(it: Any, app: Path, out: Path, count: int, **options: Any) -> str:
    """Start a run of `count` rounds; options in place of `CONFIG`'s have underscores for dashes."""
    given = {key.replace("_", "-"): value for key, value in options.items()}
    run_id: str = it.submit(app, {**CONFIG, "num-server-rounds": count, "out": str(out), **given})
    return run_id


def finish(it: Any, run_id: str, out: Path, count: int) -> dict[int, dict[str, Any]]:
    """Wait for a run that must complete, and return its rounds."""
    assert it.wait(run_id, 1500) == "finished:completed", it.run_log(run_id)
    lines = rounds(out)
    assert list(lines) == list(range(1, count + 1))
    assert (out / "model.safetensors").exists()
    return lines


def test_replies_that_cannot_be_used(deploy: Callable[..., Any], faulty_app: Path) -> None:
    faults = {
        "a": "sketch:2:nan sketch:3:old train:4:nan",
        "b": "sketch:2:infinite sketch:3:huge train:4:infinite",
        "c": "sketch:2:misshapen train:3:misshapen sketch:4:raise",
        "d": "train:1:raise",
    }
    it = start(deploy, faults)
    out = it.results / "run"
    lines = finish(it, submit(it, faulty_app, out, 4), out, 4)
    failures = {
        1: {"d": "told to raise"},
        2: {
            "a": "sketch holds 1 NaN or infinite values",
            "b": "sketch holds 1 NaN or infinite values",
            "c": "sketch of float32 with shape",
        },
        3: {
            "a": "the reply is for round 2, not 3",
            "b": "times the median",
            "c": "array 'classifier.weight' is float32",
        },
        4: {
            "a": "array 'classifier.weight' holds 1 NaN or infinite values",
            "b": "array 'classifier.weight' holds 1 NaN or infinite values",
            "c": "told to raise",
        },
    }
    for number, line in lines.items():
        assert line["failed"].keys() == failures[number].keys(), line
        for name, reason in failures[number].items():
            assert reason in line["failed"][name], line
        assert line["replied"] == [name for name in NAMES if name not in failures[number]]
        assert "skipped" not in line


def test_clients_that_hang_die_or_answer_late(deploy: Callable[..., Any], faulty_app: Path) -> None:
    faults = {"a": "sketch:2:hang", "b": "sketch:2:die", "c": "sketch:2:late"}
    it = start(deploy, faults)
    out = it.results / "run"
    # One good reply is enough to start the grace period.
    run_id = submit(it, faulty_app, out, 6, clients_per_round=1)
    it.until(lambda: 2 in rounds(out), 900)
    mark(it, "c").with_suffix(".release").touch()
    lines = finish(it, run_id, out, 6)
    assert lines[1]["sketched"] == list(NAMES)
    assert lines[2]["sketched"] == ["d"]
    assert lines[2]["failed"].keys() == {"a", "b", "c"}
    for name in ("a", "c"):
        assert "no reply within" in lines[2]["failed"][name]
    for line in lines.values():
        assert "d" in line["sketched"], line
        assert "skipped" not in line
    # The late one is back. What came late was not even looked at: it would have been refused for
    # being of another round.
    assert "c" in lines[6]["sketched"]
    assert not any("for round" in line["failed"].get("c", "") for line in lines.values())


def test_supernodes_killed(deploy: Callable[..., Any], faulty_app: Path) -> None:
    it = start(deploy, {"a": "sketch:2:mark", "b": "train:3:mark"})
    out = it.results / "run"
    run_id = submit(it, faulty_app, out, 5)
    for name in ("a", "b"):
        it.until(mark(it, name).exists, 900)
        it.kill(name)
    lines = finish(it, run_id, out, 5)
    assert lines[2]["sketched"] == ["b", "c", "d"]
    assert "a" in lines[2]["failed"]
    assert "b" in lines[3]["selected"]
    assert "b" in lines[3]["failed"]
    assert lines[3]["replied"] == ["c", "d"]
    for number in (4, 5):
        assert lines[number]["replied"] == ["c", "d"]


def test_supernode_restarted_at_once_and_a_new_one(
    deploy: Callable[..., Any], faulty_app: Path
) -> None:
    # Without authentication the restarted node has another id, and comes back at once.
    it = start(deploy, {"a": "sketch:2:mark"}, secure=False)
    out = it.results / "run"
    run_id = submit(it, faulty_app, out, 5, clients_per_round=2)
    it.until(mark(it, "a").exists, 900)
    it.kill("a")
    it.restart_client("a")
    add_client(it, "e")
    lines = finish(it, run_id, out, 5)
    assert "a" in lines[2]["failed"]
    assert lines[2]["sketched"] == ["b", "c", "d"]
    assert "e" not in lines[2]["eligible"]
    assert lines[5]["sketched"] == ["a", "b", "c", "d", "e"]
    assert all("skipped" not in line for line in lines.values())


def test_superlink_killed_and_restarted(deploy: Callable[..., Any], faulty_app: Path) -> None:
    it = start(deploy)
    out = it.results / "run"
    run_id = submit(it, faulty_app, out, 4)
    it.until(lambda: 2 in rounds(out), 900)
    it.kill("superlink")
    time.sleep(3)
    it.start_superlink()
    lines = finish(it, run_id, out, 4)
    assert lines[4]["replied"] == list(NAMES)


def test_serverapp_killed_and_resumed(deploy: Callable[..., Any], faulty_app: Path) -> None:
    it = start(deploy)
    # Momentum: the aggregator has a state too.
    options: Mapping[str, Any] = {"clients_per_round": 2, "min_clients": 4, "aggregator": "fedavgm"}
    unbroken, broken, damaged = (it.results / name for name in ("unbroken", "broken", "damaged"))
    finish(it, submit(it, faulty_app, unbroken, 3, **options), unbroken, 3)

    run_id = submit(it, faulty_app, broken, 3, **options)
    it.until((broken / "checkpoint/round-00000002.safetensors").exists, 900)
    for process in it.children("superexec"):
        process.kill()
    assert it.wait(run_id, 600) == "finished:failed"
    checkpoints = sorted((broken / "checkpoint").glob("*.safetensors"))
    assert [int(path.stem.removeprefix("round-")) for path in checkpoints] == [1, 2]
    shutil.copytree(broken, damaged)
    newest = damaged / "checkpoint" / checkpoints[-1].name
    newest.write_bytes(newest.read_bytes()[:-100])

    for out in (broken, damaged):
        run_id = submit(it, faulty_app, out, 3, resume="auto", **options)
        lines = finish(it, run_id, out, 3)
        for number, line in rounds(unbroken).items():
            assert lines[number]["selected"] == line["selected"]
        model = (out / "model.safetensors").read_bytes()
        assert model == (unbroken / "model.safetensors").read_bytes()


def test_quorum_and_replacements(deploy: Callable[..., Any], faulty_app: Path) -> None:
    it = start(deploy, dict.fromkeys("abd", "train:3:raise") | {"c": "train:2:raise"})
    out = it.results / "run"
    run_id = submit(
        it,
        faulty_app,
        out,
        4,
        strategy="round-robin",
        clients_per_round=2,
        min_clients=4,
        replacements=1,
        quorum=1.0,
    )
    lines = finish(it, run_id, out, 4)
    assert lines[1]["replied"] == ["a", "b"]
    # c is picked in round 2 and fails: another takes its place in the same round.
    assert lines[2]["failed"].keys() == {"c"}
    assert len(lines[2]["replied"]) == 2
    assert "c" not in lines[2]["replied"]
    # In round 3 at most c can answer, and two are the quorum.
    assert "skipped" in lines[3]
    assert len(lines[3]["replied"]) < 2
    assert "train-loss" not in lines[3]["metrics"]
    assert len(lines[4]["replied"]) == 2


def test_sites_have_their_own_data(deploy: Callable[..., Any], faulty_app: Path) -> None:
    it = deploy()
    it.start_server()
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    for part, name in enumerate(("hospital-a", "hospital-b")):
        own, file = slice(part, None, 2), it.folder / f"{name}.npz"
        np.savez(
            file,
            x_train=x[own][:600],
            y_train=y[own][:600],
            x_test=x[own][600:],
            y_test=y[own][600:],
        )
        it.start_client(name, f'data="{file}"')
    missing = it.folder / "missing.npz"
    it.start_client("hospital-c", f'data="{missing}"')
    out = it.results / "run"
    run_id = submit(it, faulty_app, out, 2, clients_per_round=2, min_clients=3, evaluate_every=1)
    lines = finish(it, run_id, out, 2)
    for line in lines.values():
        assert line["replied"] == ["hospital-a", "hospital-b"]
        (reason,) = line["failed"].values()
        assert "hospital-c: " in reason
        assert str(missing) in reason
    assert lines[2]["metrics"]["accuracy-by-client"].keys() == {"hospital-a", "hospital-b"}
