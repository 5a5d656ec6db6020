"""Tells whether a job's memory was still growing when it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mlflow_perf.analysis.usage import BEYOND_REASON, Usage, ramp, read_positive
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.model.profile import MODULE, Profile

_PARTS = 20
"""Growth is followed in twentieths: less is noise."""
_LOADED_MB = 100.0
"""What a process loads that starts meanwhile: an interpreter, and libraries such as SciPy."""


@dataclass(frozen=True)
class MemoryTrend:
    """How a job's memory grew.

    Attributes:
        at_stake: From 0 to 1: how steadily and how much it grew, and how near its limit is.
        first_mb: Memory near the start.
        last_mb: Memory at the end.
        mb_per_min: Mean growth: the metric `job_mem_growth_mb_per_min`, or that of the growing part
            where the block is too short for it or the memory was released at its end.
        limit_mb: Memory that the job may use; 0.0 if unknown.
        is_released: Whether over half of the growth was gone in the last sample.
    """

    at_stake: float = 0.0
    first_mb: float = 0.0
    last_mb: float = 0.0
    mb_per_min: float = 0.0
    limit_mb: float = 0.0
    is_released: bool = False


def read_memory_trend(document: NodeDocument) -> MemoryTrend:
    """Return a node's trend; nothing is at stake without reports of the job's memory.

    A job that loads its data and then keeps it does not count: memory has to grow in each third of
    the run, also in the last, and at its end. Nor does one that imports libraries all the time, or
    what the workers of a pool load, which start one after the other.
    """
    times = document.reports.get("elapsed_sec") or []
    column = document.reports.get("job_mem_mb") or []
    points = [
        (at, value)
        for at, value in zip(times, column, strict=False)
        if at is not None and value is not None and max(abs(at), abs(value)) < BEYOND_REASON
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
    counts = [one for one in document.reports.get("job_processes") or [0.0] if one is not None]
    loaded = _LOADED_MB * max(0.0, counts[-1] - counts[0]) if counts else 0.0
    large = ramp(grown - loaded, 100, 400) * ramp(last / max(first, 1.0), 1.2, 2.0)
    if steady * large == 0 or not _is_growing(points, first, grown):
        return MemoryTrend()
    usage = Usage(document.summary, document.node)
    # A block's first report repeats its first sample: growth begins at the last of equal values.
    start = next(earlier for (earlier, _), (_, later) in pairwise(points) if later > first)
    top = next(at for at, value in points if value >= last)
    # It grew in each third, so for a third at least.
    rate = 60.0 * grown / max(top - start, seconds / 3)
    is_released = points[-1][1] < first + grown / 2
    if not is_released:
        rate = usage["job_mem_growth_mb_per_min"] or rate
    limit = usage.mem_limit_mb or read_positive(document.node.get("mem_total_mb"))
    # At this rate the limit is some of the run's lengths away; a hundred of them is far.
    lengths = (limit - last) / (rate * seconds / 60.0) if limit else 10.0
    near = 1.0 - 0.6 * ramp(lengths, 3.0, 100.0)
    works = 1.0 - ramp(_measure_loading(document), 0.4, 0.8)
    return MemoryTrend(steady * large * near * works, first, last, rate, limit, is_released)


def _measure_loading(document: NodeDocument) -> float:
    """Return the share of its CPU time in which a job loaded the modules of libraries.

    A short job that imports much grows until its end, too, and keeps nothing.
    """
    profile = document.extra.get("profile")
    tree = Profile.from_dict(profile.get("flame")) if isinstance(profile, dict) else None
    if tree is None:
        return 0.0
    loading = whole = 0.0
    for node, (_, cpu_sec) in tree.sum_nodes().items():
        path = [tree.functions[tree.names[one]] for one in tree.list_path(node)]
        modules = [function for function in path if function.name == MODULE]
        whole += cpu_sec
        # The last one is the program itself, which may be a library's: pytest.
        if any(function.is_library for function in modules[:-1]):
            loading += cpu_sec
    return loading / whole if whole > 0 else 0.0


def _is_growing(points: Sequence[tuple[float, float]], first_mb: float, grown_mb: float) -> bool:
    """Return whether memory grew until the end.

    It did not if it stayed near its top for over a tenth of the run, and clearly longer than on the
    way there. Memory that grows by an equal step in each of a few epochs is flat for a while, too.
    """
    levels = [first_mb + grown_mb * part / _PARTS for part in range(1, _PARTS)]
    reached = [next(i for i, (_, mb) in enumerate(points) if mb >= level) for level in levels]
    pauses = [points[j - 1][0] - points[i][0] for i, j in pairwise(reached) if j > i]
    # A job that ends may release its memory before the last sample.
    until = max(at for at, mb in points if mb >= levels[-1])
    flat_sec = until - points[reached[-1]][0]
    seconds = points[-1][0] - points[0][0]
    return flat_sec <= max(0.1 * seconds, 1.5 * max(pauses, default=0.0))
