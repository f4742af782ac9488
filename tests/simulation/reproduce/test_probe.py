from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from server.config import ConfigError
from server.errors import RunAborted
from simulation.reproduce import probe, slices
from simulation.reproduce.item import Options
from simulation.reproduce.pair_features import FEATURES, pair_features, probe_loss
from simulation.reproduce.probe import slice_bounds, slice_losses, table_3, table_4
from simulation.reproduce.slices import Observed, ProbeSetting, observe, observe_all

SETTING = ProbeSetting(
    dataset="digits",
    data_dir="",
    model="softmax",
    num_clients=3,
    shards_per_client=2,
    rounds=2,
    local_steps=2,
    batch_size=8,
    learning_rate=0.1,
    test_images=60,
    seed=0,
)


def fabricated(seed: int, rounds: int = 20) -> Observed:
    """Pairs whose accuracy only the SCKM column knows."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((rounds, 45, len(FEATURES)))
    accuracy = 1 / (1 + np.exp(-2 * features[:, :, FEATURES.index("SCKM")]))
    return Observed(features, accuracy, accuracy.mean(axis=1))


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> list[ProbeSetting]:
    """Observe nothing in Ray; return what was asked for."""
    asked: list[ProbeSetting] = []

    def observe_all(settings, folder, *, cpus, tell):  # type: ignore[no-untyped-def]
        asked.extend(settings)
        found = [fabricated(100 * s.seed + s.shards_per_client) for s in settings]
        for observed in found:  # in most rounds there is nothing to predict, which saves fits
            observed.accuracy[[r for r in range(20) if r + 1 not in (1, 3, 5, 10, 15)]] = 0.5
        return found

    monkeypatch.setattr(probe, "observe_all", observe_all)
    return asked


def test_observations_repeat_and_follow_the_updates() -> None:
    observed, again = observe(SETTING), observe(SETTING)
    for name in ("features", "accuracy", "reached"):
        np.testing.assert_array_equal(getattr(observed, name), getattr(again, name))
    assert observed.features.shape == (2, 3, len(FEATURES))
    assert observed.accuracy.shape == (2, 3)
    assert (np.diff(observed.accuracy, axis=1) != 0).any()
    other = observe(dataclasses.replace(SETTING, seed=1))
    assert (other.features != observed.features).any()


def test_a_pairs_score_is_that_of_its_mean_update(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[np.ndarray] = []

    def spy(updates: np.ndarray) -> np.ndarray:
        seen.append(updates.copy())
        return pair_features(updates)

    monkeypatch.setattr(slices, "pair_features", spy)
    two = dataclasses.replace(SETTING, num_clients=2, shards_per_client=5)
    observed = observe(two)
    # With two clients the only pair is everyone.
    np.testing.assert_array_equal(observed.accuracy[:, 0], observed.reached)
    assert [updates.shape for updates in seen] == [(2, 650), (2, 650)]
    # The gradient of softmax regression sums to 0 over classes.
    assert abs(seen[0].sum()) < 1e-4 * np.abs(seen[0]).sum()


def test_probes_are_kept_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observed = fabricated(0)
    slices._write(tmp_path / "shards-2-seed-0.npz", SETTING, observed)
    moved = dataclasses.replace(SETTING, data_dir="elsewhere")
    (found,) = observe_all([moved], tmp_path, cpus=1, tell=print)
    np.testing.assert_array_equal(found.features, observed.features)
    longer = dataclasses.replace(SETTING, rounds=3)
    with pytest.raises(ConfigError, match="holds a probe with other settings"):
        observe_all([longer], tmp_path, cpus=1, tell=print)
    (tmp_path / "shards-2-seed-0.npz").write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match="cannot be read"):
        observe_all([SETTING], tmp_path, cpus=1, tell=print)


def test_data_that_is_not_there_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(slices, "ray_session")
    absent = dataclasses.replace(SETTING, dataset="npz", data_dir=str(tmp_path / "absent.npz"))
    with pytest.raises(ConfigError, match="absent"):
        observe_all([absent], tmp_path / "probes", cpus=1, tell=print)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_probes_run_in_ray_and_failures_are_told(tmp_path: Path) -> None:
    told: list[str] = []
    wrong = dataclasses.replace(SETTING, seed=1, dataset="nothing")
    with pytest.raises(RunAborted, match="1 of 2 probes failed"):
        observe_all([SETTING, wrong], tmp_path, cpus=2, tell=told.append)
    assert any("nothing" in line for line in told)
    (found,) = observe_all([SETTING], tmp_path, cpus=2, tell=told.append)
    np.testing.assert_array_equal(found.features, observe(SETTING).features)
    assert [file.name for file in tmp_path.iterdir()] == ["shards-2-seed-0.npz"]


def test_losses_of_slices() -> None:
    observed = fabricated(1, rounds=2)
    observed.accuracy[1] = 0.25
    losses = slice_losses(observed)
    labels = observed.accuracy[0] - observed.accuracy[0].min()
    labels /= labels.max()
    assert losses[0, 3] == probe_loss(observed.features[0, :, 3], labels)
    assert np.isnan(losses[1]).all()
    most, least = slice_bounds(observed)[0]
    assert least < losses[0].min()
    assert losses[0].max() <= most + 1e-9
    assert np.isnan(slice_bounds(observed)[1]).all()


@pytest.mark.parametrize("full", [False, True])
def test_tables_tell_the_feature_that_predicts(
    tmp_path: Path, inline: list[ProbeSetting], full: bool
) -> None:
    options = Options(out=tmp_path, full=full)
    ranked, relative = table_3(options), table_4(options)
    assert len(inline) == 2 * 9
    assert len({(s.shards_per_client, s.seed) for s in inline}) == 9
    for findings in (ranked, relative):
        table = findings.tables[0]
        assert len(table.rows) == 2 * 10
        assert all(len(row) == len(table.headings) for row in table.rows)
    rows = {row[0]: row[1:] for row in ranked.tables[0].rows}
    assert rows["All"][FEATURES.index("SCKM")] == "10.00 ± 0.00"
    assert ranked.tables[0].rows[-1][:2] == ("– in the paper", "1.28")
    above = [claim.holds for claim in ranked.claims if "SCKM ranks above" in claim.text]
    assert above == [True] * 10
    assert relative.claims[0].holds is True


def test_a_seed_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seeds = 0"):
        table_3(Options(out=tmp_path, full=False, seeds=0))
