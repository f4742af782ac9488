import dataclasses
from pathlib import Path

import pytest

from server.config import ConfigError, RunConfig
from server.results import load_run
from simulation.engines import run_inline, run_ray, with_absolute_paths

QUICK = RunConfig(num_server_rounds=3, local_steps=2)


def silent(line: str) -> None:
    pass


@pytest.mark.slow
def test_ray_and_inline_agree_bit_for_bit(tmp_path: Path) -> None:
    folders = []
    for name, engine in (("inline", run_inline), ("ray", run_ray)):
        config = dataclasses.replace(QUICK, out=str(tmp_path / name))
        folders.append(engine(config, 10, tell=silent))
    inline, ray = folders
    for key in ("selected", "scores", "metrics", "bytes-up", "bytes-down"):
        assert [line[key] for line in load_run(inline).rounds] == [
            line[key] for line in load_run(ray).rounds
        ]
    assert (inline / "model.safetensors").read_bytes() == (ray / "model.safetensors").read_bytes()


def test_same_seed_same_run_another_seed_another(tmp_path: Path) -> None:
    models = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        config = dataclasses.replace(QUICK, out=str(tmp_path / name), seed=seed)
        models.append((run_inline(config, 10, tell=silent) / "model.safetensors").read_bytes())
    assert models[0] == models[1]
    assert models[0] != models[2]


@pytest.mark.parametrize("engine", [run_inline, run_ray])
@pytest.mark.parametrize(
    ("clients", "message"),
    [(0, "^clients = 0: must be at least 1"), (2, "^clients-per-round = 3: must be at most")],
)
def test_clients_that_do_not_fit_are_refused(engine, clients: int, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=message):
        engine(QUICK, clients, tell=silent)


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = with_absolute_paths(RunConfig(out="here", data_dir="data"))
    assert (config.out, config.data_dir) == (str(tmp_path / "here"), str(tmp_path / "data"))
    fresh = with_absolute_paths(RunConfig(strategy="uniform"))
    assert Path(fresh.out).parent == tmp_path / "runs"
    assert fresh.out.endswith("-uniform")
    assert fresh.data_dir == ""
