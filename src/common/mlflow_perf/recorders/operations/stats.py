"""Sums of operations: the statistics of times, and everything recorded for one key."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import Field, asdict, dataclass, field
from typing import Any, ClassVar

from mlflow_perf.errors import SettingError
from mlflow_perf.model.sketch import Buckets, Sketch


@dataclass
class _TimeFields:
    """The fields of ProxyStore's `TimeStats`, which is a dataclass."""

    count: int = 0
    avg_time_ms: float = 0.0
    min_time_ms: float = math.inf
    max_time_ms: float = 0.0
    last_time_ms: float = 0.0
    last_timestamp: float = 0.0


class TimeStats:
    """Statistics of the times of one operation. Two of them add up; `TimeStats()` is the identity.

    Args:
        count: How often the operation happened.
        avg_time_ms: Mean time in milliseconds.
        min_time_ms: Shortest time in milliseconds; infinity when there was none.
        max_time_ms: Longest time in milliseconds.
        last_time_ms: The most recent time in milliseconds.
        last_timestamp: When the most recent one was recorded, in seconds since the Unix epoch.

    Attributes:
        total_time_ms: Sum of the times in milliseconds.
        buckets: Distribution of the times, for percentiles; None where it is not known.
    """

    # So that `dataclasses.asdict`, `fields` and `replace` work, and see no more than these.
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]] = _TimeFields.__dataclass_fields__
    __slots__ = (
        "buckets", "count", "last_time_ms", "last_timestamp", "max_time_ms", "min_time_ms",
        "total_time_ms",
    )  # fmt: skip

    def __init__(  # noqa: PLR0917 - the order of ProxyStore's class
        self,
        count: int = 0,
        avg_time_ms: float = 0.0,
        min_time_ms: float = math.inf,
        max_time_ms: float = 0.0,
        last_time_ms: float = 0.0,
        last_timestamp: float = 0.0,
    ) -> None:
        self.count = count
        self.total_time_ms = avg_time_ms * count
        self.min_time_ms = min_time_ms
        self.max_time_ms = max_time_ms
        self.last_time_ms = last_time_ms
        self.last_timestamp = last_timestamp
        self.buckets: Buckets | None = None

    @property
    def avg_time_ms(self) -> float:
        """Mean time in milliseconds."""
        return self.total_time_ms / self.count if self.count else 0.0

    def add_time(self, time_ms: float, timestamp: float | None = None) -> None:
        """Add one time.

        Args:
            time_ms: The time in milliseconds.
            timestamp: When it was recorded, in seconds since the Unix epoch; now if not given.

        Raises:
            SettingError: If the time is negative, not finite or not a number.
        """
        time_ms = as_time("time", time_ms)
        if self.buckets is None and self.count == 0:
            self.buckets = {}
        if self.buckets is not None:
            Sketch(self.buckets).add(time_ms)
        self.count += 1
        self.total_time_ms += time_ms
        self.min_time_ms = min(self.min_time_ms, time_ms)
        self.max_time_ms = max(self.max_time_ms, time_ms)
        self.last_time_ms = time_ms
        self.last_timestamp = time.time() if timestamp is None else timestamp

    def add_sums(self, other: TimeStats) -> None:
        """Add the sums of `other` without its distribution, where that is kept elsewhere."""
        if not other.count:
            return
        self.count += other.count
        self.total_time_ms += other.total_time_ms
        self.min_time_ms = min(self.min_time_ms, other.min_time_ms)
        self.max_time_ms = max(self.max_time_ms, other.max_time_ms)
        if other.last_timestamp >= self.last_timestamp:
            self.last_time_ms = other.last_time_ms
            self.last_timestamp = other.last_timestamp

    def copy_sums(self) -> TimeStats:
        """Return statistics of their own with the same sums, without the distribution."""
        new = TimeStats()
        new.add_sums(self)
        return new

    def percentile(self, percent: float) -> float | None:
        """Estimate a percentile of the times, within 1%.

        Args:
            percent: From 0 to 100.

        Returns:
            Milliseconds; None where there was no time or the distribution is not known. It is kept
            per operation, over all its keys, so the times of a single key have none.

        Raises:
            SettingError: If the percentage is not from 0 to 100.
        """
        if not 0 <= as_number("percentile", percent) <= 100:
            raise SettingError(f"A percentile is {percent!r}: give a number from 0 to 100.")
        if self.count and self.min_time_ms == self.max_time_ms:
            return self.max_time_ms
        if self.buckets is None or not self.count:
            return None
        estimate = Sketch(self.buckets).percentiles([percent])[0]
        return min(max(estimate, self.min_time_ms), self.max_time_ms)

    def as_dict(self) -> dict[str, Any]:
        """Return the six arguments that make the same statistics."""
        return asdict(self)

    def __add__(self, other: TimeStats) -> TimeStats:
        if not isinstance(other, TimeStats):
            return NotImplemented
        new = self.copy_sums()
        new.add_sums(other)
        parts = [stats.buckets for stats in (self, other) if stats.count]
        if parts and None not in parts:
            sketch = Sketch()
            for buckets in parts:
                sketch.merge(Sketch(buckets))
            new.buckets = sketch.buckets
        return new

    def __radd__(self, other: object) -> TimeStats:
        """Let `sum()` start from its 0."""
        return self + TimeStats() if other == 0 else NotImplemented

    def __eq__(self, other: object) -> bool:
        return self.as_dict() == other.as_dict() if isinstance(other, TimeStats) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it can change, like a list

    def __repr__(self) -> str:
        return f"TimeStats({', '.join(f'{k}={v!r}' for k, v in self.as_dict().items())})"


@dataclass
class Metrics:
    """What was recorded for one key.

    Attributes:
        attributes: Name of an attribute -> its last value.
        counters: Name of a counter -> its sum.
        times: Name of an operation -> statistics of its times.
    """

    attributes: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    times: dict[str, TimeStats] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the three mappings, with plain dictionaries inside."""
        return {
            "attributes": dict(self.attributes),
            "counters": dict(self.counters),
            "times": {name: stats.as_dict() for name, stats in self.times.items()},
        }


def as_time(name: object, time_ms: Any) -> float:
    """Return a time as a float.

    Raises:
        SettingError: If the time is negative, not finite or not a number; names the operation.
    """
    number = as_number(name, time_ms)
    if number < 0:
        raise SettingError(f"The time of {name!r} is negative ({time_ms!r} ms): check its clock.")
    if number > sys.float_info.max:
        raise SettingError(f"The time of {name!r} is too large for a number of milliseconds.")
    return float(number)


def as_number(name: object, value: Any) -> float:
    """Return a number as a plain int or float, whatever library it comes from.

    Raises:
        SettingError: If it is not finite or not a number; names the figure.
    """
    if isinstance(value, int):
        return int(value)
    try:
        # Not a string: float("1") would hide a mistake.
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise SettingError(f"The value of {name!r} is {value!r}: give a finite number.")
    return number
