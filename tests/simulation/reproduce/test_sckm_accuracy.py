from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from server.config import RunConfig
from simulation.reproduce import sckm_accuracy
from simulation.reproduce.item import Options, Setting
from simulation.reproduce.runs import Result
from simulation.reproduce.sckm import ITEMS
from simulation.reproduce.sckm_paper import RANKS, TABLE_5, TABLE_6


class Fake:
    """Stands in for the runs: accuracy is `level[method]` + shards / 100 + round / 10,000."""

    def __init__(self) -> None:
        self.asked: dict[str, list[Setting]] = {}
        self.level = {"sckm-select": 0.5, "sckm-cluster": 0.5, "uniform": 0.6}

    def __call__(
        self, settings: Sequence[Setting], options: Options, *, folder: str, minutes: float | None
    ) -> dict[str, list[Result]]:
        self.asked[folder] = list(settings)
        return {s.label: [self.result(s, seed) for seed in range(options.seeds)] for s in settings}

    def result(self, setting: Setting, seed: int) -> Result:
        values = RunConfig.parse(setting.values)
        step = values.evaluate_every
        rounds = np.arange(step, values.num_server_rounds + 1, step)
        level = self.level.get(values.strategy, 0.3) + values.shards_per_client / 100
        central = level + rounds / 10_000 + seed / 1000
        clustered = values.strategy == "sckm-cluster"
        found = np.arange(1, 4 if clustered else 1)
        return Result(
            seed=seed,
            clients=("0",),
            rounds=rounds,
            accuracy=central,
            worst=central / 2,
            central=central,
            by_client=np.array([0.0]),
            picks=np.array([1]),
            cluster_rounds=found,
            clusters=np.minimum(found + 20, values.clients_per_round),
        )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    runs = Fake()
    monkeypatch.setattr(sckm_accuracy, "run_settings", runs)
    return runs


@pytest.mark.parametrize("full", [False, True])
def test_items_of_one_experiment_share_their_runs(tmp_path: Path, fake: Fake, full: bool) -> None:
    options = Options(out=tmp_path, full=full)
    asked = []
    items = (sckm_accuracy.figure_4, sckm_accuracy.table_5)
    for item in (*items, sckm_accuracy.figure_5, sckm_accuracy.table_6):
        item(options)
        asked.append(dict(fake.asked))
        fake.asked.clear()
    assert asked[0] == asked[1]
    assert asked[2] == asked[3]
    (folder, settings), (folder_100, settings_100) = (
        *asked[0].items(),
        *asked[2].items(),
    )
    assert folder != folder_100
    assert len(settings) == 3 * 2 * 6
    assert len(settings_100) == 2 * 3 * 7
    sckm_accuracy.figure_3(options)
    (clustered,) = fake.asked.values()
    assert list(fake.asked) == [folder_100]
    shared = [setting for setting in clustered if setting in settings_100]
    assert len(shared) == 6
    assert len(clustered) == 9


def test_methods_differ_in_the_strategy_alone(tmp_path: Path, fake: Fake) -> None:
    sckm_accuracy.table_5(Options(out=tmp_path, full=False))
    (settings,) = fake.asked.values()
    own = {"strategy", "shards-per-client", "clients-per-round"}
    shared = {tuple(sorted((k, v) for k, v in s.values.items() if k not in own)) for s in settings}
    assert len(shared) == 1
    assert {"uniform", "round-robin"} <= {s.values["strategy"] for s in settings}


def test_table_5_has_means_beside_the_papers(tmp_path: Path, fake: Fake) -> None:
    findings = sckm_accuracy.table_5(Options(out=tmp_path, full=False))
    two, three = findings.tables
    assert two.headings[:3] == ("2 picked", "SCKM-Select", "paper")
    rows = {row[0]: row for row in two.rows}
    # Shard 5: 0.5 + 0.05 + mean of (15, 30, 45, 60) / 10,000 + mean of (0, 1, 2) / 1000
    assert rows["Shard 5"][1:3] == ("55.47 ± 0.06", "49.55")
    # Iter. 60: 0.5 + mean of (1, 2, 5) / 100 + 60 / 10,000 + 0.001
    assert rows["Iter. 60"][1:3] == ("53.37 ± 0.06", "45.59")
    assert rows["Std"][2] == "6.89"
    assert {row[0]: row[2] for row in three.rows}["All"] == "45.12"
    assert all(len(row) == len(table.headings) for table in findings.tables for row in table.rows)
    verdicts = {claim.text: claim.holds for claim in findings.claims}
    assert verdicts["average accuracy, 2 picked: SCKM-Select above AFL"] is True
    assert verdicts["average accuracy, 3 picked: SCKM-Select above uniform"] is False
    assert verdicts["that lead is larger for 3 picked than for 2"] is None


def test_figure_4_draws_every_configuration(tmp_path: Path, fake: Fake) -> None:
    findings = sckm_accuracy.figure_4(Options(out=tmp_path, full=False))
    assert len(findings.pictures) == 6
    assert len({picture.name for picture in findings.pictures}) == 6
    axes = findings.pictures[0].figure.axes[0]
    assert "(%)" in axes.get_ylabel()
    assert axes.get_xlabel() == "round"
    assert len(axes.get_lines()) == 6
    assert max(axes.get_lines()[0].get_ydata()) == pytest.approx(51.7)
    assert all(claim.holds for claim in findings.claims)


def test_figure_3_averages_clusters_as_equation_10(tmp_path: Path, fake: Fake) -> None:
    findings = sckm_accuracy.figure_3(Options(out=tmp_path, full=False))
    rows = {row[:2]: row[2:] for row in findings.tables[0].rows}
    assert rows["1", "30"] == ("22.00 ± 0.00", "22.0 ± 0.0", "22", "21 to 23")
    assert rows["2", "6"] == ("6.00 ± 0.00", "6.0 ± 0.0", "–", "6 to 6")
    assert findings.claims[0].holds is True
    verdicts = {claim.text: claim.holds for claim in findings.claims}
    assert verdicts["one shard: more clusters for 30 picked than for 20"] is True
    assert verdicts["one shard: fewer clusters than the 30 that may be picked"] is True
    assert verdicts["one shard: fewer clusters than the 6 that may be picked"] is None


def test_figure_3_compares_budgets_before_rounding(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fake.result

    def few(setting: Setting, seed: int) -> Result:
        found = [2, 2, 3 if setting.values["clients-per-round"] == 6 else 2]
        return dataclasses.replace(whole(setting, seed), clusters=np.array(found))

    monkeypatch.setattr(fake, "result", few)
    findings = sckm_accuracy.figure_3(Options(out=tmp_path, full=False))
    rows = {row[:2]: row[2:4] for row in findings.tables[0].rows}
    assert rows["1", "4"] == ("2.00 ± 0.00", "2.0 ± 0.0")
    assert rows["1", "6"] == ("2.33 ± 0.00", "2.0 ± 0.0")
    verdicts = {claim.text: claim.holds for claim in findings.claims}
    assert verdicts["one shard: more clusters for 6 picked than for 4"] is True
    assert verdicts["one shard: more clusters for 4 picked than for 2"] is None


@pytest.mark.parametrize("full", [False, True])
def test_one_seed_judges_nothing(tmp_path: Path, fake: Fake, full: bool) -> None:
    findings = sckm_accuracy.table_6(Options(out=tmp_path, full=full, seeds=1))
    assert {claim.holds for claim in findings.claims} == {None}
    assert "VGG16" in findings.notes[0]


def test_what_the_notes_say_of_the_papers_tables() -> None:
    def mean(table: dict[str, tuple[float, ...]], kind: str, column: int) -> float:
        return float(np.mean([row[column] for name, row in table.items() if kind in name]))

    two, three = dict(TABLE_5[2]), dict(TABLE_5[3])
    assert mean(two, "Shard", 0) == pytest.approx(two["All"][0], abs=0.01)
    assert mean(two, "Iter", 0) == pytest.approx(43.51, abs=0.01)
    assert mean(two, "Shard", 2) == pytest.approx(32.98, abs=0.01)
    assert [mean(three, "Iter", c) for c in range(4)] == pytest.approx(
        [45.62, 43.44, 40.39, 41.81], abs=0.01
    )
    for picked in (4, 6):
        table = dict(TABLE_6[picked])
        assert table["All"][0] == table["All"][2]
        assert table["Std"][0] == table["Std"][2]
        assert mean(table, "Iter", 2) == pytest.approx(table["All"][2], abs=0.01)
    assert mean(dict(TABLE_6[4]), "Iter", 0) == pytest.approx(16.45, abs=0.01)
    assert mean(dict(TABLE_6[6]), "Iter", 0) == pytest.approx(18.07, abs=0.01)
    sums = {name: sum(row) for name, row in RANKS.items() if name != "Std"}
    odd = {name: round(total, 1) for name, total in sums.items() if abs(total - 55) > 0.1}
    assert odd == {"Iter. 10": 22.6, "Iter. 15": 24.0}


def test_items_have_names_of_their_own() -> None:
    assert [item.name for item in ITEMS] == [
        *("figure-2", "table-3", "table-4", "figure-4"),
        *("table-5", "figure-3", "figure-5", "table-6"),
    ]
