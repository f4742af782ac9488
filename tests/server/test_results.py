import json
from pathlib import Path

import numpy as np
import pytest

from server.results import load_run


def write(folder: Path, rounds: list[dict[str, object]], tail: str = "") -> Path:
    (folder / "config.toml").write_text('strategy = "sckm-select"\nseed = 3\n')
    text = "".join(json.dumps(line) + "\n" for line in rounds)
    (folder / "rounds.jsonl").write_text(text + tail)
    return folder


ROUNDS: list[dict[str, object]] = [
    {"round": 1, "eligible": ["10", "2"], "selected": ["10"], "replied": ["10"], "metrics": {}},
    {
        "round": 2,
        "eligible": ["2", "10", "x"],
        "selected": ["2", "x"],
        "replied": ["2"],
        "metrics": {"accuracy": 0.5, "worst-accuracy": 0.25},
    },
]


def test_reads_config_rounds_and_a_line_cut_short(tmp_path: Path) -> None:
    run = load_run(write(tmp_path, ROUNDS, tail='{"round": 3, "elig'))
    assert run.config == {"strategy": "sckm-select", "seed": 3}
    assert list(run.rounds) == ROUNDS


def test_participation_and_evaluations(tmp_path: Path) -> None:
    run = load_run(write(tmp_path, ROUNDS))
    participation = run.participation()
    assert participation.names == ("2", "10", "x")
    np.testing.assert_array_equal(participation.rounds, [1, 2])
    np.testing.assert_array_equal(participation.picked, [[0, 1], [1, 0], [0, 1]])
    np.testing.assert_array_equal(participation.failed, [[0, 0], [0, 0], [0, 1]])
    evaluations = run.evaluations()
    np.testing.assert_array_equal(evaluations.rounds, [2])
    np.testing.assert_array_equal(evaluations.accuracy, [0.5])
    np.testing.assert_array_equal(evaluations.worst, [0.25])


def test_a_folder_that_is_no_run_is_one_line(tmp_path: Path) -> None:
    for make in (
        lambda: tmp_path,
        lambda: tmp_path / "absent",
        lambda: write(tmp_path, ROUNDS) / "config.toml",
    ):
        with pytest.raises(ValueError, match="is not the folder of a run: it has no") as caught:
            load_run(make())
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", ["", "3", "[]", "{}", '{"round": "1"}', "{"])
def test_a_broken_line_before_the_last_is_named(tmp_path: Path, line: str) -> None:
    folder = write(tmp_path, ROUNDS, tail=f'{line}\n{{"round": 4}}\n')
    with pytest.raises(ValueError, match=r"rounds\.jsonl, line 3: not the record of a round"):
        load_run(folder)
