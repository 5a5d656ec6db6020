"""Histograms with logarithmic buckets: mergeable percentiles within 1%, in bounded memory.

The idea is DDSketch's (Masson, Rim and Lee, VLDB 2019). Its Python library takes several
microseconds per value, ten times as long as a whole `add_time` may take, and needs protobuf.
`benchmarks/operations.py` measures both.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any

from mlflow_perf.core.json_io import require_number
from mlflow_perf.errors import DocumentError

RELATIVE_ERROR = 0.01
"""Largest distance of an estimate from the sample of its rank, as a share of that sample."""

_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
SCALE = 1 / math.log(_GAMMA)
"""Buckets per factor of e: a value is in bucket `int(log(value) * SCALE + OFFSET)`."""

SMALLEST = 1e-9
"""Values below this one count as zero (bucket 0)."""

OFFSET = 1 - math.log(SMALLEST) * SCALE
"""Shifts the bucket of `SMALLEST` to 1, so that `int` rounds every bucket the same way."""

_MAX_BUCKET = int(math.log(1.7e308) * SCALE + OFFSET) + 1

Buckets = dict[int, int]
"""Bucket number → number of values in it. Values over 15 orders of magnitude fill 1,700 buckets."""


class Sketch:
    """Counts of values in buckets whose bounds grow by 2%.

    Attributes:
        buckets: The counts. A hot path may update them itself, with `SCALE` and `OFFSET`.
    """

    __slots__ = ("buckets",)

    def __init__(self, buckets: Buckets | None = None) -> None:
        self.buckets: Buckets = {} if buckets is None else buckets

    def add(self, value: float, count: int = 1) -> None:
        """Count a finite, non-negative value `count` times."""
        bucket = int(math.log(value) * SCALE + OFFSET) if value >= SMALLEST else 0
        self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def merge(self, other: Sketch) -> None:
        """Add the counts of `other`, as if this sketch had counted all the values."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def copy(self) -> Sketch:
        """Return an independent sketch with the same counts."""
        return Sketch(dict(self.buckets))

    @property
    def count(self) -> int:
        """Number of values that were counted."""
        return sum(self.buckets.values())

    def percentiles(self, wanted: Iterable[float]) -> list[float]:
        """Estimate percentiles; interpolates between ranks linearly, as `numpy.percentile` does.

        Args:
            wanted: Percentages from 0 to 100.

        Returns:
            One estimate for each, within 1% of the exact figure; 0.0 if nothing was counted.
        """
        ordered = sorted(self.buckets.items())
        counts_so_far = list(accumulate(count for _, count in ordered))

        def estimate(rank: int) -> float:
            return _middle(ordered[bisect_right(counts_so_far, rank, hi=len(ordered) - 1)][0])

        if not ordered:
            return [0.0 for _ in wanted]
        return [
            _interpolate(estimate, percent / 100 * (counts_so_far[-1] - 1)) for percent in wanted
        ]

    def values(self) -> list[float]:
        """Return an estimate of each value, sorted."""
        return [
            value
            for bucket, count in sorted(self.buckets.items())
            for value in [_middle(bucket)] * count
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as plain data, with two lists of equal length."""
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
            DocumentError: If `as_dict` did not write it, or it has another relative error.
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


def _middle(bucket: int) -> float:
    """Return the value that is at most RELATIVE_ERROR away from all values of a bucket."""
    if bucket == 0:
        return 0.0
    exponent = min((bucket + 1 - OFFSET) / SCALE, 709.0)
    return math.exp(exponent) * 2 / (_GAMMA + 1)


def _is_counts(values: Any, limit: int) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v <= limit for v in values)


def _interpolate(value_at: Callable[[int], float], rank: float) -> float:
    low, high = value_at(math.floor(rank)), value_at(math.ceil(rank))
    return low + (high - low) * (rank - math.floor(rank))


class Distribution:
    """Count, sum, extremes and percentiles of a stream of values.

    Attributes:
        count: Number of values.
        total: Their sum.
        smallest: The smallest value; infinity without values.
        largest: The largest value; 0 without values.
    """

    EXACT = 1000
    """Up to this many values, percentiles are exact."""

    __slots__ = ("_samples", "_sketch", "count", "largest", "smallest", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.smallest = math.inf
        self.largest = 0.0
        self._samples: list[float] = []
        self._sketch = Sketch()

    def add(self, value: float) -> None:
        """Add a finite, non-negative value."""
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
        """Add `count` values near `value` with the sum `total`: a bucket of a histogram."""
        self.count += count
        self.total += total
        self.smallest = min(self.smallest, value)
        self.largest = max(self.largest, value)
        self._fold()
        self._sketch.add(value, count)

    def merge(self, other: Distribution) -> None:
        """Add all values of `other`."""
        self.count += other.count
        self.total += other.total
        self.smallest = min(self.smallest, other.smallest)
        self.largest = max(self.largest, other.largest)
        self._samples += other._samples
        self._sketch.merge(other._sketch)
        if self.count > self.EXACT or self._sketch.buckets:
            self._fold()

    def percentiles(self, wanted: Iterable[float]) -> list[float]:
        """Return percentiles as `numpy.percentile` does, exact up to `EXACT` values.

        Args:
            wanted: Percentages from 0 to 100.

        Returns:
            One figure for each, within 1% beyond `EXACT` values; 0.0 without values.
        """
        if self._sketch.buckets:
            estimates = self._sketch.percentiles(wanted)
            return [min(max(e, self.smallest), self.largest) for e in estimates]
        ordered = sorted(self._samples)
        if not ordered:
            return [0.0 for _ in wanted]
        last = len(ordered) - 1
        return [_interpolate(ordered.__getitem__, percent / 100 * last) for percent in wanted]

    @property
    def is_exact(self) -> bool:
        """Whether each value is still known exactly."""
        return not self._sketch.buckets

    def values(self) -> list[float]:
        """Return every value, sorted where they are estimates; their sum is exact."""
        if self.is_exact:
            return list(self._samples)
        estimates = self._sketch.values()
        scale = self.total / (sum(estimates) or 1.0)
        return [estimate * scale for estimate in estimates]

    def copy(self) -> Distribution:
        """Return an independent distribution with the same figures."""
        new = Distribution()
        new.merge(self)
        return new

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
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
            DocumentError: If `as_dict` did not write it.
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
        ValueError: If it is negative, not finite, or not a number.
    """
    return require_number(value, least=0)
