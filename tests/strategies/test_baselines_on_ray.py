"""Three baselines, one of each way to learn, through Flower's Ray backend."""

import dataclasses
from pathlib import Path

import pytest

from server.config import RunConfig
from server.results import load_run
from simulation.engines import run_inline, run_ray


def silent(line: str) -> None:
    pass


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["divfl", "fedcor", "gpfl"])
def test_ray_and_inline_agree(strategy: str, tmp_path: Path) -> None:
    config = RunConfig(
        strategy=strategy, num_server_rounds=5, local_steps=2, warmup=2, refit_every=2
    )
    inline, ray = (
        engine(dataclasses.replace(config, out=str(tmp_path / name)), 8, tell=silent)
        for name, engine in (("inline", run_inline), ("ray", run_ray))
    )
    for key in ("selected", "scores", "failed", "bytes-up", "bytes-down"):
        assert [line[key] for line in load_run(inline).rounds] == [
            line[key] for line in load_run(ray).rounds
        ]
    assert not any(line["failed"] for line in load_run(ray).rounds)
    assert (inline / "model.safetensors").read_bytes() == (ray / "model.safetensors").read_bytes()
