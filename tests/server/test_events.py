import importlib.util
from pathlib import Path

import pytest

from server.events import event_files
from strategies import RoundRecord


def records() -> list[RoundRecord]:
    made = [RoundRecord(number, bytes_up={"train": 10 * number}) for number in range(1, 5)]
    made[2].metrics = {"accuracy": 0.5, "worst-accuracy": 0.25, "accuracy-by-client": {"a": 0.5}}
    return made


def test_writes_evaluations_and_no_more_than_is_worth_watching(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with event_files(tmp_path) as write:
        for record in records():
            write(record)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    accuracy = [(event.step, event.value) for event in events.Scalars("accuracy")]
    assert accuracy == [(3, 0.5)]
    assert [event.step for event in events.Scalars("bytes/up")] == [1, 3]
    assert "accuracy-by-client" not in events.Tags()["scalars"]


def test_does_nothing_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with event_files(tmp_path) as write:
        write(records()[2])
    assert list(tmp_path.iterdir()) == []
