"""Tells whether a job's memory was still growing when it ended."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from mlflow_perf.analysis.usage import Usage, ramp, read_positive
from mlflow_perf.model.document import NodeDocument


@dataclass(frozen=True)
class MemoryTrend:
    """How a job's memory grew.

    Attributes:
        at_stake: From 0 to 1: how steadily and how much it grew, and how near its limit is.
        first_mb: Memory near the start.
        last_mb: Memory at the end.
        mb_per_min: Mean growth.
        limit_mb: Memory that the job may use; 0.0 if unknown.
    """

    at_stake: float = 0.0
    first_mb: float = 0.0
    last_mb: float = 0.0
    mb_per_min: float = 0.0
    limit_mb: float = 0.0


def read_memory_trend(document: NodeDocument) -> MemoryTrend:
    """Return a node's trend; nothing is at stake without reports of the job's memory.

    A job that loads its data and then keeps it does not count: memory has to grow in each third of
    the run, also in the last.
    """
    times = document.reports.get("elapsed_sec") or []
    column = document.reports.get("job_mem_mb") or []
    points = [
        (at, value)
        for at, value in zip(times, column, strict=False)
        if at is not None and value is not None
    ]
    if len(points) < 4:
        return MemoryTrend()
    begin, end = points[0][0], points[-1][0]
    seconds = end - begin
    if seconds <= 0:
        return MemoryTrend()
    # The memory at the ends of the thirds; the very last sample may already see a job that ends.
    cuts = [begin + seconds * part for part in (0.0, 1 / 3, 2 / 3)]
    marks = [next(value for at, value in points if at >= cut) for cut in cuts]
    marks.append(max(value for at, value in points if at >= begin + 0.9 * seconds))
    first, last = marks[0], marks[-1]
    grown = last - first
    if grown <= 0:
        return MemoryTrend()
    # With steady growth each third has a third of it.
    least = min((later - earlier) / grown for earlier, later in pairwise(marks))
    steady = ramp(least, 0.05, 0.2)
    large = ramp(grown, 100, 400) * ramp(last / max(first, 1.0), 1.2, 2.0)
    rate = grown / seconds
    limit = Usage(document.summary, document.node).mem_limit_mb
    limit = limit or read_positive(document.node.get("mem_total_mb"))
    # At this rate the limit is some of the run's lengths away; a hundred of them is far.
    lengths = (limit - last) / (rate * seconds) if limit and rate > 0 else 10.0
    near = 1.0 - 0.6 * ramp(lengths, 3.0, 100.0)
    return MemoryTrend(steady * large * near, first, last, 60.0 * rate, limit)
