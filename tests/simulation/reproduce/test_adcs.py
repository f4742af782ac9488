from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from server.config import RunConfig
from simulation.cli import app
from simulation.reproduce import adcs
from simulation.reproduce.adcs import ITEMS, group_shares, variation
from simulation.reproduce.item import Findings, Item, Options, Setting
from simulation.reproduce.runs import Result

ROUNDS = np.arange(500, 20_001, 500)
FIGURES = [item for item in ITEMS if item.name.startswith("figure")]

# Final worst accuracies in the order that the paper and the issue expect.
EXPECTED = {
    "adcs": 0.60,
    "adcs-every-1": 0.61,
    "adcs-sketch": 0.58,
    "adcs-every-200": 0.56,
    "power-of-choice": 0.54,
    "adcs-theta-0.5": 0.53,
    "adcs-theta-1": 0.53,
    "ocs": 0.50,
    "divfl": 0.48,
    "uniform": 0.45,
    "round-robin": 0.44,
    "adcs-theta-0.2": 0.30,
    "static-dpp": 0.15,
}


def result(
    *, seed: int = 0, worst: float = 0.5, average: float = 0.8, picks: Sequence[int] = (18,) * 30
) -> Result:
    shift = 0.001 * (seed - 1)
    return Result(
        seed=seed,
        clients=tuple(map(str, range(30))),
        rounds=ROUNDS,
        accuracy=np.full(40, average + shift),
        worst=np.full(40, worst + shift),
        central=np.full(40, average + shift),
        by_client=np.full(30, average),
        picks=np.array(picks),
        cluster_rounds=np.zeros(0, dtype=np.int64),
        clusters=np.zeros(0, dtype=np.int64),
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[Setting, str]]]:
    """Let no run happen: `asked(make)` has `make(label, seed)` answer; return what was asked."""

    def answer_with(make: Callable[[str, int], Result]) -> list[tuple[Setting, str]]:
        seen: list[tuple[Setting, str]] = []

        def run_settings(settings, options, *, folder, minutes):  # type: ignore[no-untyped-def]
            seen.extend((setting, folder) for setting in settings)
            return {s.label: [make(s.label, n) for n in range(options.seeds)] for s in settings}

        monkeypatch.setattr(adcs, "run_settings", run_settings)
        return seen

    return answer_with


def run(item: Item, *, full: bool = True, seeds: int = 3) -> Findings:
    return item.run(Options(out=Path("unused"), full=full, seeds=seeds))


def named(name: str) -> Item:
    return next(item for item in ITEMS if item.name == name)


def test_the_papers_table_gives_the_papers_distances() -> None:
    for label, shares in adcs._PAPER_SHARES.items():
        assert sum(shares) == pytest.approx(1, abs=2e-4)
        assert variation(np.array(shares)) == pytest.approx(adcs._PAPER_VARIATION[label], abs=1e-4)


def test_clients_of_a_group_are_counted_together() -> None:
    shares = group_shares(result(picks=[*(3, 2, 1), *(0,) * 24, *(0, 1, 1)]))
    np.testing.assert_allclose(shares, [6 / 8, *[0] * 8, 2 / 8])
    assert variation(shares) == pytest.approx((0.65 + 8 * 0.1 + 0.15) / 2)
    # Unequal within the groups, equal between them.
    assert variation(group_shares(result(picks=[0, 5, 1] * 10))) == pytest.approx(0)


@pytest.mark.parametrize("full", [True, False])
def test_every_setting_is_a_run_config_of_the_papers_setting(
    asked: Callable[..., list[tuple[Setting, str]]], full: bool
) -> None:
    seen = asked(lambda label, seed: result(seed=seed))
    for item in ITEMS:
        run(item, full=full)
    configs = {setting.label: RunConfig.parse(setting.values) for setting, _ in seen}
    assert set(configs) == set(EXPECTED)
    for setting, folder in seen:
        assert setting.num_clients == 30
        assert folder == ("" if full else "preset")
    for config in configs.values():
        assert config.num_server_rounds == (20_000 if full else 2_000)
        assert (config.clients_per_round, config.local_steps, config.batch_size) == (18, 1, 16)
        assert (config.learning_rate, config.weighting) == (0.001, "uniform")
        assert config.num_server_rounds >= 20 * config.evaluate_every
    assert {c.theta for label, c in configs.items() if "theta" in label} == {0.2, 0.5, 1.0}
    assert configs["adcs-every-200"].kernel_every == 200
    assert configs["adcs-sketch"].sketch_ratio == 0.005
    assert configs["adcs"].sketch_ratio == configs["divfl"].sketch_ratio == 1.0


def test_runs_as_expected_confirm_every_statement_on_accuracy(
    asked: Callable[..., list[tuple[Setting, str]]],
) -> None:
    asked(lambda label, seed: result(seed=seed, worst=EXPECTED[label], average=0.8))
    for item in FIGURES:
        claims = {claim.text: claim.holds for claim in run(item).claims}
        equal = {text for text in claims if "average" in text and "within" not in text}
        equal |= {text for text in claims if "fluctuates" in text}
        equal -= {text for text in claims if "best" in text}
        assert {text for text, holds in claims.items() if holds is not True} == equal
        assert all(claims[text] is None for text in equal)


def test_runs_the_other_way_round_refute_them(
    asked: Callable[..., list[tuple[Setting, str]]],
) -> None:
    asked(lambda label, seed: result(seed=seed, worst=1 - EXPECTED[label]))
    for item in FIGURES:
        for claim in run(item).claims:
            if claim.text.startswith("worst accuracy:") and "within" not in claim.text:
                assert claim.holds is False, claim.text


def test_one_seed_judges_nothing(asked: Callable[..., list[tuple[Setting, str]]]) -> None:
    asked(lambda label, seed: result(seed=seed, worst=EXPECTED[label]))
    for item in ITEMS:
        findings = run(item, seeds=1)
        assert {claim.holds for claim in findings.claims} == {None}
        assert any("1 seed." in note for note in findings.notes)
        assert not any("nan" in cell for table in findings.tables for r in table.rows for cell in r)


def test_accuracy_is_that_of_the_last_five_evaluations(
    asked: Callable[..., list[tuple[Setting, str]]],
) -> None:
    def make(label: str, seed: int) -> Result:
        made = result(seed=1)
        made.worst[:] = 0.0
        made.worst[-5:] = [0.1, 0.2, 0.3, 0.4, 0.9]
        return made

    asked(make)
    (table,) = run(named("figure-3")).tables
    assert table.rows[0] == (
        "R = 1",
        "0.380 ± 0.000",
        "0.900 ± 0.000",
        "0.800 ± 0.000",
        "0.800 ± 0.000",
    )


def test_table_1_has_the_papers_rows_beside_ours(
    asked: Callable[..., list[tuple[Setting, str]]],
) -> None:
    paper = adcs._PAPER_SHARES

    def make(label: str, seed: int) -> Result:
        shares = np.array(paper.get(label, (0.1,) * 10))
        if label == "ocs":
            shares[:2] += (0.03, -0.03)
        counts = np.repeat(np.round(shares * 1e6).astype(np.int64), 3)
        return result(seed=seed, picks=(counts + seed).tolist())

    asked(make)
    findings = run(named("table-1"))
    shares, distances = findings.tables
    rows = [row[0] for row in shares.rows]
    assert rows[:4] == ["uniform", "– in the paper", "OCS", "– in the paper"]
    assert shares.rows[0][1:] == shares.rows[1][1:]  # ours are made of the paper's
    assert shares.rows[2][1:3] == ("0.1557", "0.0133")
    assert shares.rows[3][1:3] == ("0.1257", "0.0433")
    found = {row[0]: row[1:] for row in distances.rows}
    assert found["ADCS"][:2] == ("0.1364 ± 0.0000", "0.1364")
    assert found["OCS"] == ("0.2541 ± 0.0000", "0.2241", "0.0300 (group 0)")
    assert found["round-robin"] == ("0.0000 ± 0.0000", "–", "–")
    claims = {claim.text: claim.holds for claim in findings.claims}
    assert claims.pop("TV distance: OCS within 0.015 of the paper's") is False
    assert set(claims.values()) == {True}


def test_the_best_other_method_is_what_adcs_has_to_keep_up_with(
    asked: Callable[..., list[tuple[Setting, str]]],
) -> None:
    for gap, holds in ((0.002, True), (0.02, False), (0.01, None)):
        averages = {"adcs": 0.8, "divfl": 0.8 + gap, "round-robin": 0.9}
        asked(lambda label, seed, a=averages: result(seed=seed, average=a.get(label, 0.7)))
        (claim,) = (c for c in run(named("figure-1")).claims if c.text.startswith("average"))
        assert "DivFL" in claim.text
        assert claim.holds is holds


def test_every_picture_has_axes_and_a_legend(
    asked: Callable[..., list[tuple[Setting, str]]],
) -> None:
    asked(lambda label, seed: result(seed=seed))
    names = set()
    for item in FIGURES:
        for picture in run(item).pictures:
            (axes,) = picture.figure.axes
            assert axes.get_xlabel() == "round"
            assert "accuracy (0 to 1)" in axes.get_ylabel()
            legend = [text.get_text() for text in picture.figure.legends[0].get_texts()]
            assert len(legend) == len(axes.lines) == len(set(legend))
            assert picture.description
            names.add(picture.name)
    assert len(names) == 6


@pytest.mark.slow
def test_the_command_runs_reports_and_does_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adcs, "_PRESET", {"num-server-rounds": 4, "evaluate-every": 1})
    arguments = ["reproduce", "adcs", "figure-3", "--preset", "--seeds", "2"]
    arguments += ["--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "6 of 6 runs to do" in result.output
    assert "6/6 " in result.output
    text = (tmp_path / "report.txt").read_text()
    assert "4 rounds (a preset; the paper has 20,000" in text
    assert (tmp_path / "figure-3-worst.png").exists()
    assert (tmp_path / "preset" / "adcs-every-200" / "seed-1" / "rounds.jsonl").exists()

    result = CliRunner().invoke(app, arguments)
    assert "runs to do" not in result.output
    assert (tmp_path / "report.txt").read_text() == text
