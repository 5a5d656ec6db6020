"""The records of one key during recording."""

from __future__ import annotations

from typing import Any

from mlflow_perf.model.sketch import Buckets
from mlflow_perf.recorders.operations.stats import Metrics, TimeStats


class RecordedTimes(TimeStats):
    """Statistics of the times of one operation and key, while they are recorded.

    Attributes:
        ident: Number in the spool file now open; 0 while it has none.
        buckets: Distribution of the operation's times, shared by all its keys.
    """

    __slots__ = ("ident", "key", "name")
    buckets: Buckets

    def __init__(self, name: str, key: Any, buckets: Buckets) -> None:
        super().__init__()
        self.name = name
        self.key = key
        self.ident = 0
        self.buckets = buckets


class Count:
    """The sum of one counter and key, while it is recorded; `ident` as in `RecordedTimes`."""

    __slots__ = ("ident", "key", "name", "value")

    def __init__(self, name: str, key: Any) -> None:
        self.name = name
        self.key = key
        self.value: float = 0
        self.ident = 0


class Entry:
    """Everything kept for one key."""

    __slots__ = ("attributes", "counters", "times")

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}
        self.counters: dict[str, Count] = {}
        self.times: dict[str, RecordedTimes] = {}

    def is_empty(self) -> bool:
        """Return whether nothing was recorded."""
        return not (self.attributes or self.counters or self.times)

    def copy_metrics(self) -> Metrics:
        """Return a copy of the sums; the values of attributes are shared."""
        return Metrics(
            dict(self.attributes),
            {name: count.value for name, count in self.counters.items()},
            {name: times.copy_sums() for name, times in self.times.items()},
        )
