"""The phases of a run, divided where the level of a curve changes and at operations.

Each phase has its bottleneck and the function that took most of its time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from mlflow_perf.analysis.finding_places import find_function
from mlflow_perf.analysis.findings import judge_part
from mlflow_perf.analysis.levels import split_levels
from mlflow_perf.analysis.time_shares import read_spans
from mlflow_perf.core.format import duration as format_duration
from mlflow_perf.core.format import format_count, quantity
from mlflow_perf.core.json_io import read_number
from mlflow_perf.model.callers import describe_caller, describe_place
from mlflow_perf.model.document import NodeDocument

_MOST = 12
_SHORTEST_SEC = 1.0
_SHORTEST_SHARE = 0.02
_WHOLE = 0.95
_NEAR_SHARE = 0.02

_LABELS: Mapping[str, str] = {
    "serial": "one CPU busy",
    "saturated": "all CPUs busy",
    "contended": "waiting for a CPU",
    "contended_gpu": "waiting for a GPU",
    "oversubscribed": "too many threads",
    "waiting": "waiting",
    "disk": "waiting for a disk",
    "network": "moving data over the network",
    "memory": "waiting for memory",
    "gpu": "GPUs busy",
    "input": "waiting for input",
    "idle": "idle",
    "balanced": "several CPUs busy",
    "too_short": "short",
}
"""Kind of finding → the same of a part of the run, in words."""


@dataclass(frozen=True)
class Phase:
    """One part of a run on one node.

    Attributes:
        name: The operation that it is; else its function, else what it did.
        start_s: Begin, in seconds from the run's start.
        end_s: End.
        kind: What held it back: a kind of `analysis.findings`, or `contended_gpu`.
        cpu_cores: CPUs that the job kept busy on average; None if unknown.
        mem_mb: The job's largest memory in it; None if unknown.
        function: Where its time went; None without a profile.
        caller: The function that called `function` for most of its time, if several call it.
    """

    name: str
    start_s: float
    end_s: float
    kind: str
    cpu_cores: float | None = None
    mem_mb: float | None = None
    function: str | None = None
    caller: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the phase as plain data."""
        return asdict(self)


def describe_phase(phase: Phase) -> str:
    """Return a phase as one sentence."""
    parts = [_LABELS.get(phase.kind, phase.kind)]
    if phase.cpu_cores is not None:
        parts.append(format_count(phase.cpu_cores, "CPU"))
    if phase.mem_mb is not None:
        parts.append(quantity(phase.mem_mb, "MB"))
    if phase.function and phase.function != phase.name:
        parts.append(f"in {describe_place(phase.function, phase.caller)}")
    elif phase.caller:
        parts.append(describe_caller(phase.caller))
    start = format_duration(phase.start_s) if phase.start_s > 0 else "0 s"
    when = f"{start} to {format_duration(phase.end_s)}"
    name = f"{phase.name}: " if phase.name != parts[0] else ""
    return f"{when}: {name}{', '.join(parts)}."


def read_phases(document: NodeDocument) -> list[Phase]:
    """Return the phases that a document holds; those of an older one are found now."""
    stored = document.extra.get("phases")
    if not isinstance(stored, list):
        return find_phases(document)
    phases = []
    for row in stored:
        start, end = (
            read_number(row.get(key)) if isinstance(row, dict) else None
            for key in ("start_s", "end_s")
        )
        if start is not None and end is not None and end > start:
            function, caller = row.get("function"), row.get("caller")
            phase = Phase(
                str(row.get("name") or ""),
                start,
                end,
                str(row.get("kind") or ""),
                read_number(row.get("cpu_cores")),
                read_number(row.get("mem_mb")),
                str(function) if function else None,
                str(caller) if caller else None,
            )
            phases.append(phase)
    return phases[:_MOST]


def find_phases(document: NodeDocument) -> list[Phase]:
    """Return the phases of a node's run in the order of time; none for a run that was too short."""
    # Rows without a time, or with one that does not ascend, are left out.
    kept, newest = [], -1.0
    for row, elapsed in enumerate(document.reports.get("elapsed_sec") or []):
        if elapsed is not None and elapsed > newest:
            kept.append(row)
            newest = elapsed
    reports = {name: [column[row] for row in kept] for name, column in document.reports.items()}
    document = replace(document, reports=reports)
    times = _read_column(document, "elapsed_sec") or []
    if len(times) < 2 or times[-1] - times[0] < _SHORTEST_SEC:
        return []
    begin, end = times[0], times[-1]
    operations = list(_list_operations(document, begin, end))
    shortest = max(_SHORTEST_SEC, _SHORTEST_SHARE * (end - begin))
    least = shortest / 2
    edges_inside = {edge for _, *edges in operations for edge in edges}
    fixed = sorted(edge for edge in edges_inside if begin + least < edge < end - least)
    # A change of the curves at an operation's edge is that edge.
    usual = median(after - before for before, after in pairwise(times))
    near = max(1.5 * usual, _NEAR_SHARE * (end - begin))
    cuts = [
        cut
        for cut in split_levels(times, list(_read_curves(document, times)), _MOST)
        if all(abs(cut - edge) > near for edge in fixed)
    ]
    edges = [begin]
    for cut in sorted([*cuts, *fixed]):
        if cut - edges[-1] >= shortest or (cut in fixed and cut - edges[-1] >= least):
            edges.append(cut)
    if end - edges[-1] < shortest and len(edges) > 1 and edges[-1] not in fixed:
        edges.pop()
    spans = read_spans(document)
    phases = []
    for start, stop in pairwise([*edges, end]):
        kind = judge_part(spans, start, stop)
        place = find_function(kind, document, (start, stop))
        half = 0.5 * (stop - start)
        inside = [name for name, a, b in operations if min(b, stop) - max(a, start) > half]
        phase = Phase(
            inside[0] if inside else place.function or _LABELS.get(kind, kind),
            round(start, 3),
            round(stop, 3),
            kind,
            _average_cores(document, times, start, stop),
            _find_peak_memory(document, times, start, stop),
            place.function,
            place.caller,
        )
        phases.append(phase)
    return phases


def _read_column(document: NodeDocument, *names: str) -> list[float] | None:
    """Return the sum of those columns that the reports have; None where a value is missing."""
    rows = list(zip(*(document.reports[n] for n in names if n in document.reports), strict=False))
    totals = [sum(v if v is not None else math.nan for v in row) for row in rows]
    return totals if totals and all(map(math.isfinite, totals)) else None


def _average_cores(
    document: NodeDocument, times: Sequence[float], start: float, end: float
) -> float | None:
    """Return the CPUs that the job kept busy on average; None if unknown."""
    counter = document.reports.get("job_cpu_sec") or document.reports.get("cpu_busy_sec")
    if counter is None or counter[0] is None:
        return None
    known = [(at, value) for at, value in zip(times, counter, strict=False) if value is not None]
    # An interval that lies across the cut belongs half to the other phase.
    whole = [at for at in times if start <= at <= end]
    first, last = (whole[0], whole[-1]) if len(whole) >= 3 else (start, end)

    def read_counter(moment: float) -> float:
        place = min(max(bisect_left(known, (moment,)), 1), len(known) - 1)
        (before, low), (after, high) = known[place - 1], known[place]
        share = min(1.0, max(0.0, (moment - before) / (after - before)))
        return low + share * (high - low)

    if len(known) < 2:
        return 0.0
    return round(max(0.0, read_counter(last) - read_counter(first)) / (last - first), 3)


def _find_peak_memory(
    document: NodeDocument, times: Sequence[float], start: float, end: float
) -> float | None:
    peaks = [
        value
        for name in ("job_mem_mb", "job_mem_mb_max")
        for moment, value in zip(times, document.reports.get(name) or [], strict=False)
        if value is not None and start - 1e-6 <= moment <= end + 1e-6
    ]
    return round(max(peaks), 1) if peaks else None


def _read_curves(document: NodeDocument, times: Sequence[float]) -> Iterator[list[float]]:
    """Yield the mean of each interval, in units of a change that is worth a cut."""

    def calculate_rates(column: Sequence[float]) -> list[float]:
        return [
            max(0.0, (column[i] - column[i - 1]) / (times[i] - times[i - 1]))
            for i in range(1, len(times))
        ]

    cpu = _read_column(document, "job_cpu_sec") or _read_column(document, "cpu_busy_sec")
    if cpu is not None:
        cores = calculate_rates(cpu)
        unit = max(0.3, 0.1 * sorted(cores)[int(0.95 * (len(cores) - 1))])
        yield [value / unit for value in cores]
    memory = _read_column(document, "job_mem_mb")
    if memory is not None:
        unit = max(48.0, 0.2 * max(memory))
        yield [(before + after) / 2 / unit for before, after in pairwise(memory)]
    for scale_mb_s, names in (
        (2.0, ("job_io_read_mb", "job_io_write_mb")),
        (8.0, ("net_io_ext_sent_mb", "net_io_ext_recv_mb")),
    ):
        moved = _read_column(document, *names)
        if moved is not None:
            yield [math.log2(1.0 + rate / scale_mb_s) / 1.5 for rate in calculate_rates(moved)]
    for name in ("gpu_utilization_pct", "gpu_others_utilization_pct"):
        gpu = _read_column(document, name)
        if gpu is not None:
            yield [value / 15.0 for value in gpu[1:]]


def _list_operations(
    document: NodeDocument, begin: float, end: float
) -> Iterator[tuple[str, float, float]]:
    """Yield name, start and end of the operations of depth one that ran once, and long enough.

    One around the whole run is no part of it, so that those inside it are of depth one.
    """
    timed = document.operations.get("times")
    found = []
    for name, stats in timed.items() if isinstance(timed, dict) else ():
        if not isinstance(stats, dict) or read_number(stats.get("count")) != 1:
            continue
        ended, took_ms = (read_number(stats.get(key)) for key in ("last_timestamp", "last_ms"))
        if ended is None or took_ms is None or document.started is None:
            continue
        stop = ended - document.started
        start, stop = max(begin, stop - took_ms / 1000.0), min(end, stop)
        length = stop - start
        least = max(0.5 * _SHORTEST_SEC, _SHORTEST_SHARE * (end - begin))
        if least <= length <= _WHOLE * (end - begin):
            found.append((str(name), start, stop))
    found.sort(key=lambda one: one[1] - one[2])  # the longest first
    kept: list[tuple[str, float, float]] = []
    for name, start, stop in found:
        if all(stop <= a + 0.05 or start >= b - 0.05 for _, a, b in kept):
            kept.append((name, start, stop))
    yield from kept[: _MOST // 2]
