"""The experiments of the ADCS paper, section 6: Figures 1 to 3 and Table 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from server.config import Scalar
from simulation.charts import lines_chart
from simulation.outcomes import mean_and_error
from simulation.reproduce.item import BANDS, Claim, Findings, Item, Options, Picture, Setting
from simulation.reproduce.runs import Result, run_settings
from simulation.reproduce.verdict import above, within, within_of
from simulation.table import Table, mean_cell

__all__ = ["ITEMS", "group_shares", "variation"]

_CLIENTS = 30
_GROUPS = 10
# Minutes of one CPU for one run at full scale, two at a time.
# R = 1 asks every client's loss on all its data in every round.
_MINUTES = {"power-of-choice": 7, "adcs-every-1": 28, "divfl": 10, "ocs": 8}
_OTHER_MINUTES = 4

_SHARED: Mapping[str, Scalar] = {
    "dataset": "fashion-mnist",
    "model": "softmax",
    "partitioner": "groups",
    "clients-per-round": 18,
    "local-steps": 1,
    "batch-size": 16,
    "learning-rate": 0.001,
    "weighting": "uniform",
}
_FULL: Mapping[str, Scalar] = {"num-server-rounds": 20_000, "evaluate-every": 500}
_PRESET: Mapping[str, Scalar] = {"num-server-rounds": 2_000, "evaluate-every": 100}
_LAST = 5  # evaluations a run's accuracy is averaged over

_ADCS: Mapping[str, Scalar] = {
    "strategy": "adcs",
    "theta": 0.8,
    "kernel-every": 20,
    "sketch-ratio": 1.0,
}
_VALUES: Mapping[str, Mapping[str, Scalar]] = {
    "adcs": _ADCS,
    "adcs-sketch": {**_ADCS, "sketch-ratio": 0.005},
    "power-of-choice": {"strategy": "power-of-choice", "variant": "cpow-d"},
    "ocs": {"strategy": "ocs"},
    "divfl": {"strategy": "divfl", "sketch-ratio": 1.0},
    "static-dpp": {"strategy": "static-dpp", "sketch-ratio": 1.0},
    "uniform": {"strategy": "uniform"},
    "round-robin": {"strategy": "round-robin"},
    "adcs-theta-0.2": {**_ADCS, "theta": 0.2},
    "adcs-theta-0.5": {**_ADCS, "theta": 0.5},
    "adcs-theta-1": {**_ADCS, "theta": 1.0},
    "adcs-every-1": {**_ADCS, "kernel-every": 1},
    "adcs-every-200": {**_ADCS, "kernel-every": 200},
}

# What the lines are called, in the order of the legend.
_METHODS = {
    "adcs": "ADCS",
    "adcs-sketch": "ADCS, 0.5% sketch",
    "power-of-choice": "power-of-choice",
    "ocs": "OCS",
    "divfl": "DivFL",
    "static-dpp": "static DPP",
    "uniform": "uniform",
    "round-robin": "round-robin",
}
_THETAS = {
    "adcs-theta-0.2": "θ = 0.2",
    "adcs-theta-0.5": "θ = 0.5",
    "adcs": "θ = 0.8",
    "adcs-theta-1": "θ = 1",
    "uniform": "uniform",
}
_EVERY = {"adcs-every-1": "R = 1", "adcs": "R = 20", "adcs-every-200": "R = 200"}
_COUNTED = {
    key: _METHODS[key]
    for key in ("uniform", "ocs", "power-of-choice", "adcs", "adcs-sketch", "round-robin")
}

# Table 1 of the paper, and the distances in its section 6.3.
_PAPER_SHARES: Mapping[str, tuple[float, ...]] = {
    "uniform": (0.1006, 0.0998, 0.0997, 0.1000, 0.0994, 0.1006, 0.0993, 0.1006, 0.1001, 0.0999),
    "ocs": (0.1257, 0.0433, 0.1661, 0.1004, 0.1666, 0.0583, 0.1653, 0.0477, 0.0733, 0.0533),
    "power-of-choice": (
        *(0.1042, 0.0441, 0.1444, 0.0881, 0.1388),
        *(0.1417, 0.1643, 0.0644, 0.0641, 0.0460),
    ),
    "adcs": (0.0952, 0.0636, 0.1127, 0.0843, 0.1032, 0.1641, 0.1564, 0.0775, 0.0821, 0.0609),
}
_PAPER_VARIATION: Mapping[str, float] = {
    "uniform": 0.0019,
    "ocs": 0.2241,
    "power-of-choice": 0.1934,
    "adcs": 0.1364,
}

_POWER_OF_CHOICE = (
    "Power-of-choice takes the largest losses of all clients (d = N), each of the mini-batch the "
    "client would train on (cpow-d). The paper does not say over which examples; over all of a "
    "client's, the groups' shares were farther from its Table 1 (TV 0.235 in one run)."
)

Value = Literal["worst", "accuracy"]
_Results = Mapping[str, Sequence[Result]]


def group_shares(result: Result) -> NDArray[np.float64]:
    """Return each group's share of all picks, shape (10,); client i is in group ⌊i/3⌋."""
    picks = result.picks.reshape(_GROUPS, -1).sum(axis=1)
    return np.asarray(picks / picks.sum(), dtype=np.float64)


def variation(shares: NDArray[np.float64]) -> float:
    """Return the total variation distance of shares, shape (n,), from equal ones (section 6.3)."""
    return float(np.abs(shares - 1 / len(shares)).sum() / 2)


def _figure_1(options: Options) -> Findings:
    results = _run(_METHODS, options)
    worst, average = _final(results, "worst"), _final(results, "accuracy")
    others = ("power-of-choice", "ocs", "divfl", "static-dpp", "uniform")
    best = max(others, key=lambda label: mean_and_error(average[label])[0])
    return Findings(
        title="Figure 1: worst and average accuracy of all methods",
        notes=(
            *_notes(options),
            "Round-robin and ADCS on 0.5% sketches are not in the paper. OCS takes the largest "
            "norms; DivFL and static DPP compare whole updates.",
            _POWER_OF_CHOICE,
            "How little below the best still is competitive is not said in the paper: we allow "
            "0.01.",
        ),
        tables=(_accuracy_table(results, _METHODS),),
        pictures=_pictures("figure-1", results, _METHODS),
        claims=(
            *_in_order(worst, ("adcs", "power-of-choice", "ocs", "uniform", "static-dpp")),
            _worst_above(worst, "adcs-sketch", "power-of-choice"),
            _worst_above(worst, "power-of-choice", "uniform"),
            _worst_above(worst, "divfl", "uniform"),
            _worst_above(worst, "adcs", "divfl"),
            above(
                "average accuracy: ADCS is less than 0.01 below the best of the paper's other "
                f"methods, here {_METHODS[best]}",
                average["adcs"],
                average[best],
                margin=-0.01,
            ),
            _worst_above(worst, "adcs", "round-robin"),
        ),
    )


def _figure_2(options: Options) -> Findings:
    results = _run(_THETAS, options)
    worst, average = _final(results, "worst"), _final(results, "accuracy")
    return Findings(
        title="Figure 2: ADCS for several θ, between diversity and quality",
        notes=(*_notes(options), "The paper's text names θ = 0.2 and 0.8; 0.5 and 1 are ours."),
        tables=(_accuracy_table(results, _THETAS),),
        pictures=_pictures("figure-2", results, _THETAS),
        claims=(
            above(
                "worst accuracy: uniform above ADCS with θ = 0.2",
                worst["uniform"],
                worst["adcs-theta-0.2"],
            ),
            above(
                "worst accuracy: ADCS with θ = 0.8 above uniform", worst["adcs"], worst["uniform"]
            ),
            above(
                "average accuracy: ADCS with θ = 0.8 above uniform",
                average["adcs"],
                average["uniform"],
            ),
        ),
    )


def _figure_3(options: Options) -> Findings:
    results = _run(_EVERY, options)
    worst, average = _final(results, "worst"), _final(results, "accuracy")
    swings = {label: [_swing(result) for result in found] for label, found in results.items()}
    return Findings(
        title="Figure 3: ADCS with the kernel made anew every R rounds",
        notes=(
            *_notes(options),
            "The paper's text names R = 1 and 20; 200 stands for one that is too large.",
            "Fluctuation: by how much the worst accuracy differs from one evaluation to the next, "
            "mean over the second half of the rounds.",
        ),
        tables=(_accuracy_table(results, _EVERY),),
        pictures=_pictures("figure-3", results, _EVERY),
        claims=(
            within_of(
                "worst accuracy: R = 20 within 0.02 of R = 1",
                worst["adcs"],
                worst["adcs-every-1"],
                0.02,
            ),
            within_of(
                "average accuracy: R = 20 within 0.02 of R = 1",
                average["adcs"],
                average["adcs-every-1"],
                0.02,
            ),
            above("worst accuracy: R = 20 above R = 200", worst["adcs"], worst["adcs-every-200"]),
            above(
                "worst accuracy: R = 1 above R = 200",
                worst["adcs-every-1"],
                worst["adcs-every-200"],
            ),
            above(
                "worst accuracy fluctuates more with R = 200 than with R = 20",
                swings["adcs-every-200"],
                swings["adcs"],
            ),
        ),
    )


def _table_1(options: Options) -> Findings:
    results = _run(_COUNTED, options)
    shares = {
        label: np.array([group_shares(result) for result in found])
        for label, found in results.items()
    }
    distances = {label: [variation(row) for row in rows] for label, rows in shares.items()}
    tolerances = {"ocs": 0.015, "power-of-choice": 0.015, "adcs": 0.025}
    return Findings(
        title="Table 1: share of each group of clients in all picks",
        notes=(
            *_setting_notes(options),
            "Group g holds class g. TV is the total variation distance of the ten groups' shares "
            "from 0.1 each: of each run, then the mean. Round-robin and ADCS on 0.5% sketches are "
            "not in the paper.",
            _POWER_OF_CHOICE,
        ),
        tables=(_share_table(shares), _variation_table(shares, distances)),
        claims=(
            *(
                within(
                    f"TV distance: {_METHODS[label]} within {tolerance} of the paper's",
                    distances[label],
                    _PAPER_VARIATION[label],
                    tolerance,
                )
                for label, tolerance in tolerances.items()
            ),
            *(
                above(
                    f"TV distance: {_METHODS[high]} above {_METHODS[low]}",
                    distances[high],
                    distances[low],
                )
                for high, low in (
                    ("ocs", "power-of-choice"),
                    ("power-of-choice", "adcs"),
                    ("adcs", "uniform"),
                )
            ),
        ),
    )


ITEMS: tuple[Item, ...] = (
    Item("figure-1", "worst and average accuracy of all methods", _figure_1),
    Item("figure-2", "worst and average accuracy of ADCS for several θ", _figure_2),
    Item("figure-3", "worst and average accuracy of ADCS for several R", _figure_3),
    Item("table-1", "share of each group of clients in all picks", _table_1),
)


def _run(labels: Mapping[str, str], options: Options) -> dict[str, list[Result]]:
    scale = _FULL if options.full else _PRESET
    settings = [
        Setting(label, {**_SHARED, **scale, **_VALUES[label]}, _CLIENTS) for label in labels
    ]
    minutes = sum(_MINUTES.get(label, _OTHER_MINUTES) for label in labels) / len(labels)
    share = _rounds(scale) / _rounds(_FULL)
    folder = "" if options.full else "preset"
    return run_settings(settings, options, folder=folder, minutes=minutes * share)


def _rounds(scale: Mapping[str, Scalar]) -> int:
    return int(scale["num-server-rounds"])


def _notes(options: Options) -> tuple[str, ...]:
    scale = _FULL if options.full else _PRESET
    return (
        *_setting_notes(options),
        f"Accuracy of a run is the mean of its last {_LAST} evaluations, {scale['evaluate-every']} "
        "rounds apart, since one alone is noisy; the last alone is in the table too. The paper's "
        "text has no figures for accuracy, only an order, and does not say over how many runs.",
        BANDS,
    )


def _setting_notes(options: Options) -> tuple[str, ...]:
    scale = _FULL if options.full else _PRESET
    rounds = f"{_rounds(scale):,} rounds"
    if not options.full:
        rounds += f" (a preset; the paper has {_rounds(_FULL):,}, see --full)"
    seeds = f"{options.seeds} seed{'s' * (options.seeds > 1)}"
    return (
        f"{rounds}, {seeds}. Fashion-MNIST, softmax regression, 30 clients in 10 groups of 3, 18 "
        "picked a round, one SGD step of 16 examples with a learning rate of 0.001, plain mean of "
        "the updates. ADCS: quality is the local loss; θ = 0.8, R = 20 and whole updates unless "
        "named otherwise.",
        "The paper says that the clients of a group have one distribution, not which: here each "
        "group has one class. A client's test data are of its own class.",
    )


def _series(result: Result, value: Value) -> NDArray[np.float64]:
    return result.worst if value == "worst" else result.accuracy


def _final(results: _Results, value: Value) -> dict[str, list[float]]:
    """Return for each label the accuracy of each seed, mean of the last evaluations."""
    return {
        label: [float(_series(result, value)[-_LAST:].mean()) for result in found]
        for label, found in results.items()
    }


def _swing(result: Result) -> float:
    half = result.worst[len(result.worst) // 2 :]
    return float(np.abs(np.diff(half)).mean())


def _worst_above(worst: Mapping[str, Sequence[float]], high: str, low: str) -> Claim:
    text = f"worst accuracy: {_METHODS[high]} above {_METHODS[low]}"
    return above(text, worst[high], worst[low])


def _in_order(worst: Mapping[str, Sequence[float]], labels: Sequence[str]) -> list[Claim]:
    return [_worst_above(worst, high, low) for high, low in pairwise(labels)]


def _pictures(name: str, results: _Results, labels: Mapping[str, str]) -> tuple[Picture, ...]:
    def picture(value: Value, short: str, ylabel: str) -> Picture:
        lines = [
            (
                text,
                [
                    dict(zip(r.rounds.tolist(), _series(r, value).tolist(), strict=True))
                    for r in results[label]
                ],
            )
            for label, text in labels.items()
        ]
        description = f"{ylabel} over rounds: {', '.join(labels.values())}"
        return Picture(f"{name}-{short}", lines_chart(lines, ylabel=ylabel), description)

    return (
        picture("worst", "worst", "worst client's accuracy (0 to 1)"),
        picture("accuracy", "average", "average accuracy (0 to 1)"),
    )


def _accuracy_table(results: _Results, labels: Mapping[str, str]) -> Table:
    columns = [_final(results, "worst"), _last(results, "worst")]
    columns += [_final(results, "accuracy"), _last(results, "accuracy")]
    rows = tuple(
        (text, *(mean_cell(column[label], _three) for column in columns))
        for label, text in labels.items()
    )
    headings = ("method", "worst", "worst, last", "average", "average, last")
    note = (
        f"Accuracy, mean ± standard error over seeds: of the last {_LAST} evaluations, and of the "
        "last alone. The paper's text has no figures for these."
    )
    return Table(headings, rows, note)


def _last(results: _Results, value: Value) -> dict[str, list[float]]:
    return {
        label: [float(_series(result, value)[-1]) for result in found]
        for label, found in results.items()
    }


def _share_table(shares: Mapping[str, NDArray[np.float64]]) -> Table:
    rows = []
    for label, found in shares.items():
        rows.append((_METHODS[label], *map(_four, found.mean(axis=0))))
        if label in _PAPER_SHARES:
            rows.append(("– in the paper", *map(_four, _PAPER_SHARES[label])))
    errors = [mean_and_error(column.tolist())[1] for found in shares.values() for column in found.T]
    note = "Share of all picks by group, mean over seeds"
    if not np.isnan(errors).any():
        note += f"; the largest standard error of a share is {max(errors):.4f}"
    headings = ("method", *(f"g {group}" for group in range(_GROUPS)))
    return Table(headings, tuple(rows), f"{note}.")


def _variation_table(
    shares: Mapping[str, NDArray[np.float64]], distances: Mapping[str, Sequence[float]]
) -> Table:
    rows = []
    for label, found in shares.items():
        paper = difference = "–"
        if label in _PAPER_SHARES:
            paper = _four(_PAPER_VARIATION[label])
            gaps = np.abs(found.mean(axis=0) - np.array(_PAPER_SHARES[label]))
            difference = f"{gaps.max():.4f} (group {gaps.argmax()})"
        rows.append((_METHODS[label], mean_cell(distances[label], _four), paper, difference))
    headings = ("method", "TV distance", "in the paper", "largest difference of a share")
    return Table(headings, tuple(rows), "TV distance: mean ± standard error over seeds.")


def _three(value: float) -> str:
    return f"{value:.3f}"


def _four(value: float) -> str:
    return f"{value:.4f}"
