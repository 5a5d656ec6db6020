"""What is kept for each key: the mutable sums behind `Metrics` and `TimeStats`.

Imports only sketch and `stats`.
"""

from __future__ import annotations

import copy
import math
from typing import Any

from mlflow_perf.model.sketch import Buckets, Sketch
from mlflow_perf.recorders.operations.stats import Metrics, TimeStats

__all__ = ["Count", "Entry", "Times"]


_ITS_PLACE = ("name", "key", "buckets", "ident")


class Times:
    """Sums of the times of one operation and key.

    Attributes:
        name: Name of the operation.
        key: Its key.
        buckets: Where the distribution of the operation is counted, shared by all its keys.
        ident: Number in the journal now open; 0 until it has one.
        count, total, smallest, largest, last, timestamp: The sums, in milliseconds; the last time's
            Unix time in seconds.
    """

    __slots__ = (
        "buckets", "count", "ident", "key", "largest", "last", "name", "smallest", "timestamp",
        "total",
    )  # fmt: skip

    def __init__(self, name: str, key: Any, buckets: Buckets) -> None:
        self.name = name
        self.key = key
        self.buckets = buckets
        self.ident = 0
        self.count = 0
        self.total = 0.0
        self.smallest = math.inf
        self.largest = 0.0
        self.last = 0.0
        self.timestamp = 0.0

    def add(self, time_ms: float, timestamp: float) -> None:
        """Take in one time, recorded at a Unix time."""
        self.count += 1
        self.total += time_ms
        self.smallest = min(self.smallest, time_ms)
        self.largest = max(self.largest, time_ms)
        self.last = time_ms
        self.timestamp = timestamp
        Sketch(self.buckets).add(time_ms)

    def absorb(self, other: Times) -> None:
        """Add the sums of `other`."""
        self.count += other.count
        self.total += other.total
        self.smallest = min(self.smallest, other.smallest)
        self.largest = max(self.largest, other.largest)
        if other.timestamp >= self.timestamp:
            self.last = other.last
            self.timestamp = other.timestamp

    def copy(self) -> Times:
        """Return an object of its own with the same sums."""
        new = Times(self.name, self.key, self.buckets)
        new.absorb(self)
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the sums without the buckets, which others may be filling meanwhile."""
        sums = {name: getattr(self, name) for name in self.__slots__ if name not in _ITS_PLACE}
        return Times, (self.name, self.key, {}), (None, sums)

    def stats(self, sketch: Sketch | None = None) -> TimeStats:
        """Return the sums as statistics."""
        return TimeStats(
            count=self.count,
            avg_time_ms=self.total / self.count if self.count else 0.0,
            min_time_ms=self.smallest,
            max_time_ms=self.largest,
            last_time_ms=self.last,
            last_timestamp=self.timestamp,
            _sketch=sketch,
        )


class Count:
    """The sum of one counter and key.

    Attributes:
        name: Name of the counter.
        key: Its key.
        value: The sum.
        ident: Number in the journal now open; 0 until it has one.
    """

    __slots__ = ("ident", "key", "name", "value")

    def __init__(self, name: str, key: Any, value: float = 0) -> None:
        self.name = name
        self.key = key
        self.value = value
        self.ident = 0


class Entry:
    """All that is kept for one key."""

    __slots__ = ("attributes", "counters", "times")

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}
        self.counters: dict[str, Count] = {}
        self.times: dict[str, Times] = {}

    def is_empty(self) -> bool:
        """Tell whether nothing was recorded."""
        return not (self.attributes or self.counters or self.times)

    def copy(self) -> Entry:
        """Return an entry of its own with the same sums."""
        new = Entry()
        new.attributes = dict(self.attributes)
        new.counters = {n: Count(n, c.key, c.value) for n, c in self.counters.items()}
        new.times = {n: t.copy() for n, t in self.times.items()}
        return new

    def metrics(self) -> Metrics:
        """Return the sums for a user."""
        return Metrics(
            attributes=copy.deepcopy(self.attributes),
            counters={name: count.value for name, count in self.counters.items()},
            times={name: times.stats() for name, times in self.times.items()},
        )
