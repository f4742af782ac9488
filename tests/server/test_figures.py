import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from server.figures import accuracy_figure, participation_figure, save_figures
from server.results import load_run


def write(
    folder: Path, *, clients: int, rounds: int, picked: int, every: int = 1, delivers: bool = True
) -> Path:
    names = [f"c{i}" for i in range(clients)]
    (folder / "config.toml").write_text('strategy = "uniform"\ndataset = "digits"\nseed = 1\n')
    with (folder / "rounds.jsonl").open("w") as out:
        for r in range(1, rounds + 1):
            selected = [names[(r * picked + i) % clients] for i in range(picked)]
            metrics = {"accuracy": 1 - 1 / (r + 1), "worst-accuracy": 0.5} if r % every == 0 else {}
            line = {
                "round": r,
                "eligible": names,
                "selected": selected,
                "replied": selected if delivers else selected[1:],
                "metrics": metrics,
            }
            out.write(json.dumps(line) + "\n")
    return folder


@pytest.mark.parametrize(
    ("clients", "rounds"), [(5, 1), (10, 30), (100, 120), (2500, 20), (40, 900)]
)
def test_both_pictures_are_drawn(tmp_path: Path, clients: int, rounds: int) -> None:
    paths = save_figures(write(tmp_path, clients=clients, rounds=rounds, picked=3))
    assert [path.name for path in paths] == ["accuracy.png", "participation.png"]
    for path in paths:
        height, width = imread(path).shape[:2]
        assert 300 < height <= 1800
        assert 900 < width <= 1200


def test_accuracy_shows_the_numbers_with_axes_and_legend(tmp_path: Path) -> None:
    run = load_run(write(tmp_path, clients=4, rounds=6, picked=2, every=2))
    figure = accuracy_figure(run)
    (axes,) = figure.axes
    mean, worst = axes.lines
    np.testing.assert_array_equal(mean.get_xdata(), [2, 4, 6])
    np.testing.assert_allclose(mean.get_ydata(), [2 / 3, 4 / 5, 6 / 7])
    np.testing.assert_array_equal(worst.get_ydata(), [0.5] * 3)
    assert axes.get_xlabel() == "round"
    assert "accuracy" in axes.get_ylabel()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["mean over clients", "worst client"]


def test_participation_marks_each_pick_once(tmp_path: Path) -> None:
    run = load_run(write(tmp_path, clients=5, rounds=7, picked=2, delivers=False))
    (axes,) = participation_figure(run).axes
    marks = [tuple(at) for group in axes.collections for at in group.get_offsets()]
    expected = [(r, (2 * r + i) % 5) for r in range(1, 8) for i in range(2)]
    assert sorted(marks) == sorted(expected)
    lost = axes.collections[1].get_offsets()
    assert sorted(tuple(at) for at in lost) == sorted((r, 2 * r % 5) for r in range(1, 8))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["c0", "c1", "c2", "c3", "c4"]


def test_shares_keep_the_mean(tmp_path: Path) -> None:
    run = load_run(write(tmp_path, clients=30, rounds=1000, picked=18))
    axes, bar = participation_figure(run).axes
    shares = np.asarray(axes.images[0].get_array())
    assert shares.shape == (30, 100)
    assert np.mean(shares) == pytest.approx(18 / 30)
    assert "share of rounds" in bar.get_ylabel()


def test_nothing_to_show_draws_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "rounds.jsonl").write_text("")
    assert save_figures(tmp_path) == []


def test_pyplot_is_not_loaded() -> None:
    code = "import server.figures, sys; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
