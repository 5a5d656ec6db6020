"""What operations add up to: statistics of times, and the figures of one key.

Imports only errors and sketch.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from mlflow_perf.errors import SettingError
from mlflow_perf.model.sketch import Sketch

__all__ = ["Metrics", "TimeStats", "as_number", "as_time"]


@dataclass
class TimeStats:
    """Statistics of the times of one operation. Two of them add up; `TimeStats()` is the identity.

    Attributes:
        count: How often the operation happened.
        avg_time_ms: Mean time in milliseconds.
        min_time_ms: Shortest time in milliseconds; infinity when there was none.
        max_time_ms: Longest time in milliseconds.
        last_time_ms: The most recent time in milliseconds.
        last_timestamp: When the most recent one was recorded, in seconds since the Unix epoch.
    """

    count: int = 0
    avg_time_ms: float = 0.0
    min_time_ms: float = math.inf
    max_time_ms: float = 0.0
    last_time_ms: float = 0.0
    last_timestamp: float = 0.0
    _sketch: Sketch | None = field(default=None, repr=False, compare=False)

    @property
    def total_time_ms(self) -> float:
        """Sum of the times in milliseconds."""
        return self.avg_time_ms * self.count

    def add_time(self, time_ms: float) -> None:
        """Take in one more time, as of now.

        Raises:
            SettingError: If the time is negative, not finite or not a number.
        """
        time_ms = as_time("time", time_ms)
        if self._sketch is None and self.count == 0:
            self._sketch = Sketch()
        if self._sketch is not None:
            self._sketch.add(time_ms)
        self.avg_time_ms = (self.avg_time_ms * self.count + time_ms) / (self.count + 1)
        self.count += 1
        self.min_time_ms = min(self.min_time_ms, time_ms)
        self.max_time_ms = max(self.max_time_ms, time_ms)
        self.last_time_ms = time_ms
        self.last_timestamp = time.time()

    def percentile(self, percent: float) -> float | None:
        """Estimate a percentile of the times, within 1%.

        Args:
            percent: From 0 to 100.

        Returns:
            Milliseconds; None where no distribution is kept: for the times of one key among others
            (they are kept per operation, over all its keys) and when there was none.

        Raises:
            SettingError: If the percentage is not from 0 to 100.
        """
        if not 0 <= as_number("percentile", percent) <= 100:
            raise SettingError(f"A percentile is {percent!r}: give a number from 0 to 100.")
        if self.count and self.min_time_ms == self.max_time_ms:
            return self.max_time_ms
        if self._sketch is None or not self.count:
            return None
        estimate = self._sketch.percentiles([percent])[0]
        return min(max(estimate, self.min_time_ms), self.max_time_ms)

    def as_dict(self) -> dict[str, Any]:
        """Return the six attributes."""
        return {
            "count": self.count,
            "avg_time_ms": self.avg_time_ms,
            "min_time_ms": self.min_time_ms,
            "max_time_ms": self.max_time_ms,
            "last_time_ms": self.last_time_ms,
            "last_timestamp": self.last_timestamp,
        }

    def __add__(self, other: TimeStats) -> TimeStats:
        if not isinstance(other, TimeStats):
            return NotImplemented
        if not self.count or not other.count:
            return _copy(self if self.count else other)
        last = self if self.last_timestamp > other.last_timestamp else other
        count = self.count + other.count
        return TimeStats(
            count=count,
            avg_time_ms=(self.total_time_ms + other.total_time_ms) / count,
            min_time_ms=min(self.min_time_ms, other.min_time_ms),
            max_time_ms=max(self.max_time_ms, other.max_time_ms),
            last_time_ms=last.last_time_ms,
            last_timestamp=last.last_timestamp,
            _sketch=_merged(self._sketch, other._sketch),
        )

    def __radd__(self, other: object) -> TimeStats:
        """Let `sum()` start from its 0."""
        return _copy(self) if other == 0 else NotImplemented


def _copy(stats: TimeStats) -> TimeStats:
    sketch = stats._sketch.copy() if stats._sketch is not None else None  # noqa: SLF001 - same module
    return TimeStats(**stats.as_dict(), _sketch=sketch)


def _merged(left: Sketch | None, right: Sketch | None) -> Sketch | None:
    if left is None or right is None:
        return None
    both = left.copy()
    both.merge(right)
    return both


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
        SettingError: If it is not finite or not a number; names what it was meant for.
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
