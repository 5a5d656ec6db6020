"""A histogram with logarithmic buckets: percentiles to 1% in bounded memory, and it adds up.

Imports only errors. The idea is DDSketch's (Masson, Rim and Lee, VLDB 2019), whose Python library
takes several microseconds per value, ten times what a whole `add_time` may cost here (targets.md),
and pulls in protobuf; the part of it that is needed is the two formulas below, so they stand here.
`benchmarks/operations.py` prints both beside each other.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from mlflow_perf.errors import DocumentError

__all__ = ["OFFSET", "RELATIVE_ERROR", "SCALE", "SMALLEST", "Buckets", "Distribution", "Sketch"]

RELATIVE_ERROR = 0.01
"""How far an estimate may lie from the sample of its rank, as a share of that sample."""

_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
SCALE = 1 / math.log(_GAMMA)
"""Buckets per factor of e: a value falls into bucket `int(log(value) * SCALE + OFFSET)`."""

SMALLEST = 1e-9
"""Values below this count as zero (bucket 0)."""

OFFSET = 1 - math.log(SMALLEST) * SCALE
"""Shifts the bucket of `SMALLEST` to 1, so that `int` rounds every bucket the same way."""

_MOST = sys.float_info.max
_MAX_BUCKET = int(math.log(1.7e308) * SCALE + OFFSET) + 1

Buckets = dict[int, int]
"""Bucket number -> how many values fell into it. Values over 15 orders of magnitude fill 1,700."""


def _middle(bucket: int) -> float:
    """Return the value that is at most `RELATIVE_ERROR` away from all of a bucket's values."""
    if bucket == 0:
        return 0.0
    exponent = (bucket + 1 - OFFSET) / SCALE
    return math.exp(min(exponent, 709.0)) * 2 / (_GAMMA + 1)


class Sketch:
    """Counts of values in buckets whose bounds grow by 2%.

    Attributes:
        buckets: The counts. A hot path may count into it itself, by `SCALE` and `OFFSET`.
    """

    __slots__ = ("buckets",)

    def __init__(self, buckets: Buckets | None = None) -> None:
        self.buckets: Buckets = {} if buckets is None else buckets

    def add(self, value: float, count: int = 1) -> None:
        """Count a finite value that is not negative, `count` times."""
        bucket = int(math.log(value) * SCALE + OFFSET) if value >= SMALLEST else 0
        self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def merge(self, other: Sketch) -> None:
        """Add the counts of `other`: the result is that of one sketch that saw all the values."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def copy(self) -> Sketch:
        """Return a sketch of its own with the same counts."""
        return Sketch(dict(self.buckets))

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.buckets.values())

    def percentiles(self, wanted: Iterable[float]) -> list[float]:
        """Estimate percentiles, between neighbouring ranks linearly as `numpy.percentile` does.

        Args:
            wanted: Percentages from 0 to 100.

        Returns:
            One estimate for each, within 1% of the exact figure; all 0.0 when nothing was counted.
        """
        ordered = sorted(self.buckets.items())
        last = sum(count for _, count in ordered) - 1
        return [
            _interpolate(ordered, percent / 100 * last) if ordered else 0.0 for percent in wanted
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as two lists of equal length, for JSON."""
        ordered = sorted(self.buckets.items())
        return {
            "relative_error": RELATIVE_ERROR,
            "bucket": [bucket for bucket, _ in ordered],
            "count": [count for _, count in ordered],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Sketch:
        """Rebuild a sketch.

        Raises:
            DocumentError: If this is not what `as_dict` wrote, or has another relative error.
        """
        if data.get("relative_error") != RELATIVE_ERROR:
            raise DocumentError(
                f"A histogram has the relative error {data.get('relative_error')!r}; only "
                f"{RELATIVE_ERROR} can be read."
            )
        buckets: list[int] = data.get("bucket", [])
        counts: list[int] = data.get("count", [])
        if not (_is_counts(buckets, _MAX_BUCKET) and _is_counts(counts, 2**63)):
            raise DocumentError("A histogram's buckets and counts are not lists of whole numbers.")
        if len(buckets) != len(counts) or len(set(buckets)) != len(buckets):
            raise DocumentError("A histogram's buckets and counts do not match.")
        return cls(dict(zip(buckets, counts, strict=True)))


def _is_counts(values: Any, limit: int) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v <= limit for v in values)


def _interpolate(ordered: list[tuple[int, int]], rank: float) -> float:
    low = _at_rank(ordered, math.floor(rank))
    high = _at_rank(ordered, math.ceil(rank))
    return low + (high - low) * (rank - math.floor(rank))


def _at_rank(ordered: list[tuple[int, int]], rank: int) -> float:
    seen = 0
    for bucket, count in ordered:
        seen += count
        if seen > rank:
            return _middle(bucket)
    return _middle(ordered[-1][0])


class Distribution:
    """Count, sum, extremes and percentiles of a stream of values; exact while they are few.

    Attributes:
        count: How many values there were.
        total: Their sum.
        smallest: The least of them; infinity when there was none.
        largest: The greatest of them; 0 when there was none.
    """

    EXACT = 1000
    """Up to this many values, percentiles are exact, from the values themselves."""

    __slots__ = ("_samples", "_sketch", "count", "largest", "smallest", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.smallest = math.inf
        self.largest = 0.0
        self._samples: list[float] = []
        self._sketch = Sketch()

    def add(self, value: float) -> None:
        """Take in a finite value that is not negative."""
        self.count += 1
        self.total += value
        self.smallest = min(self.smallest, value)
        self.largest = max(self.largest, value)
        if self.count <= self.EXACT:
            self._samples.append(value)
            return
        self._fold()
        self._sketch.add(value)

    def add_bucket(self, value: float, count: int, total: float) -> None:
        """Take in `count` values near `value` whose sum is `total`, as a histogram tells them."""
        self.count += count
        self.total += total
        self.smallest = min(self.smallest, value)
        self.largest = max(self.largest, value)
        self._fold()
        self._sketch.add(value, count)

    def merge(self, other: Distribution) -> None:
        """Take in all that `other` has seen."""
        self.count += other.count
        self.total += other.total
        self.smallest = min(self.smallest, other.smallest)
        self.largest = max(self.largest, other.largest)
        self._samples += other._samples
        self._sketch.merge(other._sketch)
        if self.count > self.EXACT or self._sketch.buckets:
            self._fold()

    def percentiles(self, wanted: Iterable[float]) -> list[float]:
        """Return percentiles as `numpy.percentile` does, exact while the values are few.

        Args:
            wanted: Percentages from 0 to 100.

        Returns:
            One figure for each, within 1% beyond `EXACT` values; 0.0 when there was no value.
        """
        if self._sketch.buckets:
            estimates = self._sketch.percentiles(wanted)
            return [min(max(e, self.smallest), self.largest) for e in estimates]
        ordered = sorted(self._samples)
        return [_exact(ordered, percent) for percent in wanted]

    def copy(self) -> Distribution:
        """Return a distribution of its own with the same figures."""
        new = Distribution()
        new.merge(self)
        return new

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        data: dict[str, Any] = {"count": self.count, "total": self.total}
        if self.count:
            data |= {"min": self.smallest, "max": self.largest}
        if self._samples:
            data["samples"] = list(self._samples)
        if self._sketch.buckets:
            data["sketch"] = self._sketch.as_dict()
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Distribution:
        """Rebuild a distribution.

        Raises:
            DocumentError: If this is not what `as_dict` wrote.
        """
        new = cls()
        try:
            new._samples = [finite(value) for value in data.get("samples", ())]
            new._sketch = Sketch.from_dict(data["sketch"]) if "sketch" in data else Sketch()
            new.count = int(data["count"])
            new.total = finite(data["total"])
            new.smallest = finite(data["min"]) if new.count else math.inf
            new.largest = finite(data["max"]) if new.count else 0.0
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DocumentError(f"A distribution of values cannot be read: {error!r}.") from error
        if new.count != len(new._samples) + new._sketch.count:
            raise DocumentError("A distribution's count is not that of its values.")
        return new

    def _fold(self) -> None:
        for value in self._samples:
            self._sketch.add(value)
        self._samples = []


def finite(value: Any) -> float:
    """Return a JSON number as a float.

    Raises:
        ValueError: If it is negative, not finite, or no number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST:
        raise ValueError(f"{value!r} is not a finite number of at least zero")
    return float(value)


def _exact(ordered: list[float], percent: float) -> float:
    if not ordered:
        return 0.0
    rank = percent / 100 * (len(ordered) - 1)
    low, high = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    return low + (high - low) * (rank - math.floor(rank))
