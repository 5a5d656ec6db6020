"""Statistics of the steps of one loop on one rank, which add up over processes and nodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlflow_perf.errors import DocumentError
from mlflow_perf.model.sketch import OFFSET, SCALE, Buckets, Sketch, finite
from mlflow_perf.recorders.steps.course import Course

INPUT, COMPUTE = "input", "compute"
"""Parts that every loop has: the wait for the next item, and the rest of the step."""

_NS_OFFSET = OFFSET - math.log(1e6) * SCALE  # a bucket of milliseconds, for a value in nanoseconds

SUMS = (
    "gc_ms", "gc_count", "kernel_ms", "minor_faults", "major_faults", "cpu_ms", "run_delay_ms",
)  # fmt: skip
"""What a loop's process did meanwhile: collections of garbage, time in the kernel, page faults; and
its thread: CPU time, and the time in which it waited for a CPU."""


class StepTimes:
    """Count, sum, extremes and percentiles of the times of steps, or of one part of them.

    Attributes:
        count: Number of steps.
        total_ms: Sum of their times.
        min_ms: The least time; infinity without steps.
        max_ms: The greatest time; 0 without steps.
        buckets: Distribution of the times in milliseconds.
    """

    __slots__ = ("buckets", "count", "max_ms", "min_ms", "total_ms")

    def __init__(self) -> None:
        self.count = 0
        self.total_ms = 0.0
        self.min_ms = math.inf
        self.max_ms = 0.0
        self.buckets: Buckets = {}

    def add_all(self, times_ns: list[int]) -> None:
        """Add times in nanoseconds."""
        if not times_ns:
            return
        if min(times_ns) < 0:  # time aside that began before the wait for the item
            times_ns = [max(0, time_ns) for time_ns in times_ns]
        self.count += len(times_ns)
        self.total_ms += sum(times_ns) / 1e6
        self.min_ms = min(self.min_ms, min(times_ns) / 1e6)
        self.max_ms = max(self.max_ms, max(times_ns) / 1e6)
        log, scale, offset = math.log, SCALE, _NS_OFFSET
        found = [int(log(time_ns or 1) * scale + offset) for time_ns in times_ns]
        for bucket, count in Counter(found).items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def merge(self, other: StepTimes) -> None:
        """Add all times of `other`."""
        self.count += other.count
        self.total_ms += other.total_ms
        self.min_ms = min(self.min_ms, other.min_ms)
        self.max_ms = max(self.max_ms, other.max_ms)
        Sketch(self.buckets).merge(Sketch(other.buckets))

    @property
    def mean_ms(self) -> float:
        """Mean time; 0.0 without steps."""
        return self.total_ms / self.count if self.count else 0.0

    def percentiles(self, wanted: Iterable[float]) -> list[float]:
        """Return percentiles in milliseconds, within 1% of the exact figures."""
        found = Sketch(self.buckets).percentiles(wanted)
        return [min(max(value, self.min_ms), self.max_ms) for value in found]

    def as_dict(self, *, brief: bool = False) -> dict[str, Any]:
        """Return the figures, and the sketch that they are merged from, as plain data.

        Args:
            brief: Whether to leave out what follows from the others.
        """
        if not self.count:  # time after the last step may have come without one
            return {"count": 0, **({"total_ms": self.total_ms} if self.total_ms else {})}
        data: dict[str, Any] = {"count": self.count, "total_ms": self.total_ms}
        if not brief:
            p50, p95, p99 = self.percentiles((50, 95, 99))
            data |= {"mean_ms": self.mean_ms, "p50_ms": p50, "p95_ms": p95, "p99_ms": p99}
        data |= {"min_ms": self.min_ms, "max_ms": self.max_ms}
        return data | {"sketch": Sketch(self.buckets).as_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepTimes:
        """Rebuild the statistics.

        Raises:
            ValueError: If `as_dict` did not write them.
            LookupError: Likewise.
        """
        new = cls()
        new.total_ms = finite(data.get("total_ms", 0.0))
        if data["count"]:
            new.count = int(finite(data["count"]))
            new.min_ms, new.max_ms = finite(data["min_ms"]), finite(data["max_ms"])
            new.buckets = Sketch.from_dict(data["sketch"]).buckets
        return new


@dataclass
class LoopRecord:
    """What is known of the steps of one loop on one rank, or of a piece of them.

    Attributes:
        began: Unix time of the first step; infinity without one.
        first_ms: How long the first step took.
        step: Times of the whole steps.
        parts: `input`, `compute`, and each part that the code named → its times. A part that ran
            within another one is named `outer.inner`.
        sums: The figures of `SUMS` that are known.
        course: The steps over time.
    """

    began: float = math.inf
    first_ms: float = 0.0
    step: StepTimes = field(default_factory=StepTimes)
    parts: dict[str, StepTimes] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    course: Course = field(default_factory=Course)

    def merge(self, other: LoopRecord) -> None:
        """Add all that `other` knows."""
        if other.began < self.began:
            self.began, self.first_ms = other.began, other.first_ms
        self.step.merge(other.step)
        for name, times in other.parts.items():
            self.parts.setdefault(name, StepTimes()).merge(times)
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.course.merge(other.course)

    def add_late(self, time_ns: int, parts: dict[str, int]) -> None:
        """Add time after the last step, such as that of a last evaluation.

        Args:
            time_ns: The time.
            parts: Of it, the time of each part.
        """
        self.step.total_ms += time_ns / 1e6
        self.parts.setdefault(COMPUTE, StepTimes()).total_ms += time_ns / 1e6
        for name, part_ns in parts.items():
            self.parts.setdefault(name, StepTimes()).add_all([part_ns])

    def divide(self) -> dict[str, float]:
        """Return the mean time per step of `input`, each part and `rest`.

        They add up to the step, or to more where parts of several tasks overlap. Parts within
        another one are left out. Without parts, all time that is not `input` is `compute`.
        """
        count = max(1, self.step.count)
        means = {name: times.total_ms / count for name, times in self.parts.items()}
        compute, waited = means.pop(COMPUTE, 0.0), means.pop(INPUT, 0.0)
        inner = {name for name in means if any(name.startswith(f"{o}.") for o in self.parts)}
        outer = {name: value for name, value in means.items() if name not in inner}
        if not outer:
            return {INPUT: waited, COMPUTE: compute}
        return {INPUT: waited, **outer, "rest": max(0.0, compute - sum(outer.values()))}

    def as_dict(self, *, most_rows: int | None = None, brief: bool = False) -> dict[str, Any]:
        """Return everything as plain data.

        Args:
            most_rows: How many rows of the course to return at most; None for all.
            brief: Whether to leave out what follows from the other figures.
        """
        began = {"began": self.began} if self.began < math.inf else {}
        return {
            **began,
            "first_ms": self.first_ms,
            "step": self.step.as_dict(brief=brief),
            "parts": {name: times.as_dict(brief=brief) for name, times in self.parts.items()},
            **self.sums,
            "course": self.course.as_dict(most_rows),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LoopRecord:
        """Rebuild a record.

        Raises:
            DocumentError: If `as_dict` did not write it.
        """
        try:
            return cls(
                began=finite(data.get("began", 0.0)) or math.inf,
                first_ms=finite(data.get("first_ms", 0.0)),
                step=StepTimes.from_dict(data["step"]),
                parts={
                    str(name): StepTimes.from_dict(part) for name, part in data["parts"].items()
                },
                sums={name: finite(data[name]) for name in SUMS if name in data},
                course=Course.from_dict(data.get("course", {})),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise DocumentError(f"The steps of a loop cannot be read: {error!r}.") from error


def name_nested(loop: str) -> str:
    """Return the name of a loop in the steps of one of the same name."""
    return f"{loop}.{loop}"


def name_as_part(loop: str) -> str:
    """Return the name that a loop has as a part of the steps of the loop around it."""
    half = loop[: len(loop) // 2]
    own = half if loop == name_nested(half) else loop
    return "steps" if own == "step" else own  # "step" is the whole


def sum_ranks(ranks: Mapping[int, LoopRecord]) -> LoopRecord:
    """Return the steps of all ranks as those of one, without a course."""
    whole = LoopRecord()
    for record in ranks.values():
        whole.step.merge(record.step)
        for part, times in record.parts.items():
            whole.parts.setdefault(part, StepTimes()).merge(times)
    return whole
