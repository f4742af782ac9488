"""Reading and filling Flower's records without the checks that have been done already.

Flower checks key and value at every assignment, and builds a view that checks again at every
`content.array_records`: some 10 µs each, dozens of times a message, which in a simulation within
one process is more than training a small model takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.app.typing import ConfigRecordValues, MetricRecordValues

__all__ = ["AggregationContent", "Record", "config_of", "content_of", "find", "metrics_of"]

Record = ArrayRecord | ConfigRecord | MetricRecord
_Kind = TypeVar("_Kind", ArrayRecord, ConfigRecord, MetricRecord)


def find(records: RecordDict, name: str, kind: type[_Kind]) -> _Kind | None:
    """Return the record of that name and kind, or None."""
    record = records.get(name)
    return record if isinstance(record, kind) else None


def content_of(records: Mapping[str, Record]) -> RecordDict:
    """Return a RecordDict of records that are known to be such."""
    content = RecordDict()
    content.__dict__["_data"] = dict(records)
    return content


def config_of(values: Mapping[str, ConfigRecordValues]) -> ConfigRecord:
    """Return a ConfigRecord of values that are known to be allowed."""
    record = ConfigRecord()
    record.__dict__["_data"] = dict(values)
    return record


def metrics_of(values: Mapping[str, MetricRecordValues]) -> MetricRecord:
    """Return a MetricRecord of values that are known to be numbers or lists of numbers."""
    record = MetricRecord()
    record.__dict__["_data"] = dict(values)
    return record


class AggregationContent(RecordDict):
    """What an aggregator reads of a reply: one record of arrays, one of metrics."""

    def __init__(self, arrays: ArrayRecord, metrics: MetricRecord) -> None:
        """Hold the two under the names that Flower's own replies use."""
        super().__init__()
        self.__dict__["_data"] = {"arrays": arrays, "metrics": metrics}

    @property
    def array_records(self) -> dict[str, ArrayRecord]:  # type: ignore[override]
        """The arrays; changes to the dict have no effect."""
        return {"arrays": self.__dict__["_data"]["arrays"]}

    @property
    def metric_records(self) -> dict[str, MetricRecord]:  # type: ignore[override]
        """The metrics; changes to the dict have no effect."""
        return {"metrics": self.__dict__["_data"]["metrics"]}
