from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from server.config import ConfigError
from simulation.overrides import parse_overrides


@pytest.mark.parametrize(
    "texts",
    [
        [],
        ["theta=0.8"],
        ['strategy="adcs" theta=0.5 seed=3 reuse-update=false'],
        ["strategy='sckm select'", "seed=1  theta=1e-1"],
        ["out=\"/a b/c=d\" sketch-layers='fc1,fc2'"],
    ],
)
def test_agrees_with_flwr(texts: list[str]) -> None:
    assert parse_overrides(texts) == parse_config_args(texts)


def test_reads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('strategy = "adcs"\ntheta = 0.5\n')
    assert parse_overrides([str(file)]) == {"strategy": "adcs", "theta": 0.5}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["adcs"], "^adcs: expected key=value pairs"),
        (["theta = 0.5"], "^theta: expected key=value pairs"),
        (["strategy=adcs"], 'text needs double quotes: strategy="adcs"'),
        (['strategy="adcs'], 'strategy="adcs: not a value; its quote is not closed'),
        (['strategy="adcs" x'], "^x: expected"),
        (["absent.toml"], "^absent.toml: no such file"),
    ],
)
def test_mistakes_are_one_line(texts: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_overrides(texts)
    assert "\n" not in str(caught.value)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("strategy = adcs\n")
    with pytest.raises(ConfigError, match=r"run\.toml: "):
        parse_overrides([str(file)])
