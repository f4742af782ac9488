from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from fakes import StubClients, stub_model
from flwr.app import Message, RecordDict

from simulation.inline import InlineGrid
from strategies import ADCS, RoundRecord, SketchSpec
from strategies.selection.types import Candidates, Selection

CLIENTS = 7


def adcs(**options: Any) -> ADCS:
    return ADCS(**{"clients_per_round": 3, "sketch": SketchSpec(ratio=0.1), **options})


def run(strategy: ADCS, clients: StubClients, grid: InlineGrid, rounds: int) -> list[RoundRecord]:
    records: list[RoundRecord] = []
    strategy.start(
        grid,
        stub_model(),
        num_rounds=rounds,
        evaluate_every=0,
        on_round=lambda record, model: records.append(record),
    )
    return records


def test_between_kernels_nobody_sketches_and_only_the_picked_work() -> None:
    clients = StubClients()
    records = run(adcs(kernel_every=3), clients, InlineGrid(clients.app, CLIENTS), 7)
    for record in records:
        turn = record.round
        kernel = turn in (1, 4, 7)
        everyone = [str(i) for i in range(CLIENTS)]
        assert clients.asked("sketch", turn) == (everyone if kernel else [])
        assert record.sketched == (everyone if kernel else [])
        assert ("sketch" in record.bytes_down) is kernel
        assert sorted(clients.asked("train", turn)) == sorted(record.selected)
        trained = {name for (t, name) in clients.trained if t == turn}
        assert trained == (set(everyone) if kernel else set(record.selected))
        assert record.diagnostics["kernel-round"] == turn - (turn - 1) % 3
        assert record.selected == records[turn - 1 - (turn - 1) % 3].selected
    assert not any(kind == "name" for turn, kind, _ in clients.messages if turn in (1, 4, 7))


def test_the_greedy_step_runs_once_a_kernel_and_again_after_a_checkpoint() -> None:
    strategy = adcs(kernel_every=3)
    select = strategy.selector
    assert select is not None
    rounds: list[int] = []

    def counted(candidates: Candidates, budget: int, rng: np.random.Generator) -> Selection:
        rounds.append(candidates.round)
        return select(candidates, budget, rng)

    counted.needs = select.needs  # type: ignore[attr-defined]
    strategy.selector = counted  # type: ignore[assignment]
    records: list[RoundRecord] = []

    def note(record: RoundRecord, model: Any) -> None:
        records.append(record)
        if record.round == 5:
            strategy.load_state_dict(copy.deepcopy(strategy.state_dict()))

    grid = InlineGrid(StubClients().app, CLIENTS)
    strategy.start(grid, stub_model(), num_rounds=8, evaluate_every=0, on_round=note)
    assert rounds == [1, 4, 6, 7]
    for record in records:
        assert record.selected == records[(record.round - 1) // 3 * 3].selected


def test_every_round_has_a_kernel_by_default() -> None:
    clients = StubClients()
    records = run(adcs(), clients, InlineGrid(clients.app, CLIENTS), 3)
    assert [record.diagnostics["kernel-round"] for record in records] == [1, 2, 3]
    assert all(len(clients.asked("sketch", turn)) == CLIENTS for turn in (1, 2, 3))


def test_a_picked_client_that_is_gone_is_replaced_from_what_is_left_of_the_kernel() -> None:
    clients = StubClients()
    grid = InlineGrid(clients.app, CLIENTS)
    strategy = adcs(kernel_every=5)
    first: list[str] = []

    def leave(server_round: int, model: Any) -> None:
        if server_round == 1:
            first.extend(strategy._open_round().record.selected)
            del grid._contexts[1001 + int(first[0])]

    records: list[RoundRecord] = []
    strategy.start(
        grid,
        stub_model(),
        num_rounds=2,
        evaluate_every=1,
        evaluate_fn=leave,
        on_round=lambda record, model: records.append(record),
    )
    state = strategy.state
    left = [row for row, name in enumerate(state["names"]) if name != first[0]]
    kernel = Candidates(
        round=2,
        names=tuple(state["names"][row] for row in left),
        sketches=state["sketches"][left],
        layers=(state["sketches"].shape[1],),
        losses=state["losses"][left],
        norms=state["norms"][left],
        examples=np.ones(len(left), np.int64),
        seconds=state["seconds"][left],
        ages=state["ages"][left],
    )
    assert strategy.selector is not None
    rows = strategy.selector(kernel, 3, np.random.default_rng(0)).rows
    assert records[1].selected == [kernel.names[row] for row in rows]
    assert first[0] not in records[1].selected
    assert records[1].sketched == []


def test_a_failed_kernel_round_is_made_up_for_in_the_next() -> None:
    def fails_in_1(kind: str, message: Message, content: RecordDict) -> RecordDict:
        if kind == "sketch" and message.content["config"]["round"] == 1:
            raise ArithmeticError("no luck")
        return content

    clients = StubClients({str(i): fails_in_1 for i in range(CLIENTS)})
    records = run(adcs(kernel_every=3), clients, InlineGrid(clients.app, CLIENTS), 3)
    assert records[0].skipped is not None
    assert len(records[1].sketched) == CLIENTS
    assert records[1].diagnostics["kernel-round"] == 2
    assert records[2].sketched == []


def test_fewer_left_of_the_kernel_than_the_budget_is_no_error() -> None:
    strategy = adcs(kernel_every=9, clients_per_round=3)
    clients = StubClients()
    grid = InlineGrid(clients.app, CLIENTS)
    run(strategy, clients, grid, 1)
    for partition in range(2, CLIENTS):
        grid._contexts.pop(1001 + partition)
    grid._contexts |= {
        2001 + i: context
        for i, context in InlineGrid(clients.app, 20)._contexts.items()
        if i > 1010
    }
    for node, context in grid._contexts.items():
        context.node_id = node
    records: list[RoundRecord] = []
    strategy.start(
        grid,
        stub_model(),
        num_rounds=2,
        first_round=2,
        evaluate_every=0,
        on_round=lambda record, model: records.append(record),
    )
    assert sorted(records[0].selected) == ["0", "1"]
    assert records[0].skipped is None


@pytest.mark.parametrize("value", [0, -2])
def test_kernel_every_is_at_least_1(value: int) -> None:
    with pytest.raises(ValueError, match=f"kernel_every = {value}: must be at least 1"):
        adcs(kernel_every=value)
