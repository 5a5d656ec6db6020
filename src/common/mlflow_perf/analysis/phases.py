"""The phases of a run: its curves cut where their level changes, and at the operations.

Each phase says what held it back and which function its time went into.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mlflow_perf.analysis.finding_places import find_function
from mlflow_perf.analysis.findings import judge_part
from mlflow_perf.core.format import duration as format_duration
from mlflow_perf.core.format import one_decimal, quantity
from mlflow_perf.core.json_io import read_number
from mlflow_perf.model.document import NodeDocument

if TYPE_CHECKING:  # NumPy takes 0.1 s to import, and is not needed to read phases
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

_MOST = 12
_SHORTEST_SEC = 1.0
_SHORTEST_SHARE = 0.02
_WHOLE = 0.95
_NEAR_SHARE = 0.02

_LABELS: Mapping[str, str] = {
    "serial": "one CPU busy",
    "saturated": "all CPUs busy",
    "contended": "waiting for a CPU",
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
        kind: What held it back: a kind of `analysis.findings`.
        cpu_cores: CPUs that the job kept busy on average; None if unknown.
        mem_mb: The job's largest memory in it; None if unknown.
        function: Where its time went; None without a profile.
    """

    name: str
    start_s: float
    end_s: float
    kind: str
    cpu_cores: float | None = None
    mem_mb: float | None = None
    function: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the phase as plain data."""
        return asdict(self)


def describe_phase(phase: Phase) -> str:
    """Return a phase as one sentence."""
    parts = [_LABELS.get(phase.kind, phase.kind)]
    if phase.cpu_cores is not None:
        parts.append(f"{one_decimal(phase.cpu_cores)} CPUs")
    if phase.mem_mb is not None:
        parts.append(quantity(phase.mem_mb, "MB"))
    if phase.function and phase.function != phase.name:
        parts.append(f"in {phase.function}")
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
            function = row.get("function")
            phase = Phase(
                str(row.get("name") or ""),
                start,
                end,
                str(row.get("kind") or ""),
                read_number(row.get("cpu_cores")),
                read_number(row.get("mem_mb")),
                str(function) if function else None,
            )
            phases.append(phase)
    return phases[:_MOST]


def find_phases(document: NodeDocument) -> list[Phase]:
    """Return the phases of a node's run in the order of time; none for one that was too short."""
    import numpy as np

    from mlflow_perf.analysis.levels import split_levels

    document = _drop_late_rows(document)
    times, curves = _read_curves(document)
    if len(times) < 2 or times[-1] - times[0] < _SHORTEST_SEC:
        return []
    begin, end = float(times[0]), float(times[-1])
    operations = list(_list_operations(document, begin, end))
    shortest = max(_SHORTEST_SEC, _SHORTEST_SHARE * (end - begin))
    least = shortest / 2
    edges_inside = {edge for _, *edges in operations for edge in edges}
    fixed = sorted(edge for edge in edges_inside if begin + least < edge < end - least)
    units = [curve / unit for curve, unit in curves.values()]
    # A change of the curves at an operation's edge is that edge.
    near = max(1.5 * float(np.median(np.diff(times))), _NEAR_SHARE * (end - begin))
    cuts = [
        cut
        for cut in split_levels(times.tolist(), units, _MOST)
        if all(abs(cut - edge) > near for edge in fixed)
    ]
    edges = [begin]
    for cut in sorted([*cuts, *fixed]):
        if cut - edges[-1] >= shortest or (cut in fixed and cut - edges[-1] >= least):
            edges.append(cut)
    if end - edges[-1] < shortest and len(edges) > 1 and edges[-1] not in fixed:
        edges.pop()
    edges.append(end)
    return [
        _make_phase(document, operations, times, start, stop) for start, stop in pairwise(edges)
    ]


def _make_phase(
    document: NodeDocument,
    operations: Sequence[tuple[str, float, float]],
    times: Array,
    start: float,
    end: float,
) -> Phase:
    import numpy as np

    kind = judge_part(document, start, end)
    function = find_function(kind, document, (start, end))
    inside = [
        name for name, a, b in operations if min(b, end) - max(a, start) > 0.5 * (end - start)
    ]
    counter = document.reports.get("job_cpu_sec") or document.reports.get("cpu_busy_sec")
    cores = None
    if counter is not None and counter[0] is not None:
        values = np.array(counter, np.float64)
        known = np.isfinite(values)
        # An interval that lies across the cut belongs half to the other phase.
        whole = times[(times >= start) & (times <= end)]
        first, last = (whole[0], whole[-1]) if len(whole) >= 3 else (start, end)
        used = np.interp([first, last], times[known], values[known])
        cores = round(float(max(0.0, used[1] - used[0]) / (last - first)), 3)
    peaks = [
        value
        for name in ("job_mem_mb", "job_mem_mb_max")
        for moment, value in zip(times, document.reports.get(name) or [], strict=False)
        if value is not None and start - 1e-6 <= moment <= end + 1e-6
    ]
    name = inside[0] if inside else function or _LABELS.get(kind, kind)
    memory = round(max(peaks), 1) if peaks else None
    return Phase(name, round(start, 3), round(end, 3), kind, cores, memory, function)


def _drop_late_rows(document: NodeDocument) -> NodeDocument:
    """Return a document whose times are known and ascend."""
    kept, newest = [], -1.0
    for row, elapsed in enumerate(document.reports.get("elapsed_sec") or []):
        if elapsed is not None and elapsed > newest:
            kept.append(row)
            newest = elapsed
    reports = {name: [column[row] for row in kept] for name, column in document.reports.items()}
    return replace(document, reports=reports)


def _read_curves(document: NodeDocument) -> tuple[Array, dict[str, tuple[Array, float]]]:
    """Return the times of the reports, and name → (mean of each interval, a change worth a cut)."""
    import numpy as np

    reports = document.reports
    times = np.array(reports.get("elapsed_sec") or [], np.float64)
    if len(times) < 2:
        return times, {}
    steps = np.diff(times)

    def column(*names: str) -> Array | None:
        found = [np.array(reports[name], np.float64) for name in names if name in reports]
        total = np.sum(found, axis=0) if found else None
        return None if total is None or not np.isfinite(total).all() else total

    curves: dict[str, tuple[Array, float]] = {}
    cpu = column("job_cpu_sec")
    cpu = column("cpu_busy_sec") if cpu is None else cpu
    if cpu is not None:
        cores = np.maximum(np.diff(cpu), 0.0) / steps
        curves["cpu"] = cores, max(0.3, 0.1 * float(np.percentile(cores, 95)))
    memory = column("job_mem_mb")
    if memory is not None:
        means = (memory[1:] + memory[:-1]) / 2
        curves["memory"] = means, max(48.0, 0.2 * float(memory.max()))
    for name, scale_mb_s, names in (
        ("disk", 2.0, ("job_io_read_mb", "job_io_write_mb")),
        ("network", 8.0, ("net_io_ext_sent_mb", "net_io_ext_recv_mb")),
    ):
        moved = column(*names)
        if moved is not None:
            rates = np.maximum(np.diff(moved), 0.0) / steps
            curves[name] = np.log2(1.0 + rates / scale_mb_s), 1.5
    gpu = column("gpu_utilization_pct")
    if gpu is not None:
        curves["gpu"] = gpu[1:], 15.0
    return times, curves


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
