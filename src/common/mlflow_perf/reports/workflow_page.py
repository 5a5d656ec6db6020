"""The page of a workflow as plain data: Gantt, tiles and table of the steps.

The input is the plain data of `mlflow_perf.analysis.workflow`, also from an older `workflow.json`:
a missing key is left out of the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from mlflow_perf.core.format import (
    MISSING,
    clock_time,
    cpu_time,
    cut_text,
    duration,
    format_count,
    quantity,
)
from mlflow_perf.core.json_io import read_number, read_numbers
from mlflow_perf.model.document import BROKEN, worst_status
from mlflow_perf.model.summary import summarise_run
from mlflow_perf.reports.job_share import CpuShare, add_cpu_shares, read_cpu_share
from mlflow_perf.reports.tables import Tile

_ENDED = {"FINISHED", *BROKEN}
_MOST_STEPS = 1000
_MOST_NODES = 64
_MOST_NAMES = 100
_TICKS = 6
_LONGEST_SEC = 1e15  # the difference of two times of a damaged file may be infinite
_ROUND_SEC = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200),
    *(86400 * days for days in (1, 2, 5, 10, 30, 100, 365)),
)


@dataclass
class Bar:
    """One line of the Gantt; places are in per cent of the workflow's time.

    Attributes:
        label: Name of the step or node.
        left: Start of its run.
        width: Length of its run: start-up, measured block and end.
        waited: Length of its wait before that.
        reporting: Length of what mlflow-perf itself took before that.
        block_left: Start of its measured block.
        block_width: Length of its measured block; 0.0 without one.
        busy_pct: How much of its CPUs the job kept busy in the block, None if unknown.
        text: Times and figures in words.
        status: As MLflow's.
        critical: Whether the step is on the critical path.
        run_id: The step's run, or empty.
        share: Its part of the workflow's time as text, on the critical path; else empty.
        nodes: The bars of the step's nodes, if there are several.
        left_out: How many nodes are not shown.
    """

    label: str
    left: float
    width: float
    waited: float = 0.0
    reporting: float = 0.0
    block_left: float = 0.0
    block_width: float = 0.0
    busy_pct: float | None = None
    text: str = ""
    status: str = ""
    critical: bool = False
    run_id: str = ""
    share: str = ""
    nodes: list[Bar] = field(default_factory=list)
    left_out: int = 0


@dataclass(frozen=True)
class WorkflowPage:
    """The content of a workflow's page.

    Attributes:
        name: Name of the workflow.
        status: Its own, as MLflow's; until it has ended, the worst of its steps.
        started: Start time, as text.
        tiles: Headline figures.
        findings: What to change first, one sentence each.
        critical_path: The steps that determine the duration: name, length and share of the whole.
        ticks: Marks on the time axis: place in per cent, and text.
        bars: The Gantt's lines, by start time.
        rows: The table: one dictionary of texts per step.
        left_out: How many steps are not shown.
    """

    name: str = ""
    status: str = ""
    started: str = ""
    tiles: list[Tile] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    critical_path: list[tuple[str, str, str]] = field(default_factory=list)
    ticks: list[tuple[float, str]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: int = 0


class _Step:
    """One step of the data, read defensively.

    Attributes:
        name: Name of the step.
        status: As MLflow's, or empty.
        run_id: The step's run, or empty.
        critical: Whether the step is on the critical path.
        started: Unix time; None if unknown.
        took: Seconds; None if unknown.
        waited: Seconds; None if unknown.
        reporting: Seconds that mlflow-perf itself took before it; 0.0 if unknown.
        verdict: What held it back, in a word; or empty.
        advice: The verdict's sentence; or empty.
        params: Its parameters.
        nodes: The data of its nodes.
        block: Start and length of the measured blocks together; None without any.
        cpus: How the CPUs of its nodes were shared.
        figures: Run-level figures: as given, else from the nodes.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.name = str(data.get("name") or "–")
        self.status = str(data.get("status") or "")
        self.run_id = str(data.get("run_id") or "")
        self.critical = bool(data.get("critical"))
        self.started = read_number(data.get("started"))
        self.took = read_number(data.get("duration_sec"))
        self.waited = read_number(data.get("waited_sec"))
        self.reporting = read_number(data.get("reporting_sec")) or 0.0
        self.verdict = str(data.get("bottleneck") or "")
        self.advice = str(data.get("advice") or "")
        given = data.get("params")
        self.params = dict(given) if isinstance(given, Mapping) else {}
        self.after = ", ".join(map(str, _read_list(data.get("depends_on"))[:_MOST_NAMES]))
        self.nodes = _read_mappings(data.get("nodes"))
        self.block = _span_blocks(self.nodes)
        self.cpus = add_cpu_shares(_read_cpu_shares(self.nodes))
        self.figures = {**_summarise(self.nodes), **read_numbers(data.get("figures"))}


def build_workflow_page(data: Mapping[str, Any]) -> WorkflowPage:
    """Return the page of a workflow.

    Args:
        data: The workflow as plain data.
    """
    steps = [_Step(step) for step in _read_mappings(data.get("steps"))]
    steps.sort(key=lambda step: step.started or 0.0)
    spans = [(s.started - (s.waited or 0.0) - s.reporting, s.started + (s.took or 0.0))
             for s in (_Step(data), *steps) if s.started is not None]  # fmt: skip
    start = min((begin for begin, _ in spans), default=0.0)
    length = max((end for _, end in spans), default=0.0) - start
    axis = _Axis(start, min(max(length, 1e-9), _LONGEST_SEC))
    shown = steps[:_MOST_STEPS]
    own, statuses = str(data.get("status") or ""), [step.status for step in steps]
    took = {step.name: step.took for step in steps}
    path = []
    for name in map(str, _read_list(data.get("critical_path"))[:_MOST_STEPS]):
        seconds = took.get(name)
        share = f"{100 * seconds / length:.0f}%" if seconds is not None and length > 0 else ""
        path.append((name, quantity(seconds, "s"), share))
    return WorkflowPage(
        name=str(data.get("name") or ""),
        # A runner draws the report before the whole has ended.
        status=own if own in _ENDED else worst_status(statuses),
        started=clock_time(start) if start > 0 else "",
        tiles=list(_build_tiles(data, steps, read_number(data.get("duration_sec")) or length)),
        findings=[str(text) for text in _read_list(data.get("findings"))[:_MOST_NAMES]],
        critical_path=path,
        ticks=axis.ticks(),
        bars=[_build_bar(step, axis) for step in shown],
        rows=[_build_row(step) for step in shown],
        left_out=len(steps) - len(shown),
    )


def _read_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _read_mappings(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in _read_list(value) if isinstance(one, Mapping)]


def _summarise(nodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the run-level figures of a step from its nodes."""
    summaries = [read_numbers(node.get("summary")) for node in nodes]
    return summarise_run(summary for summary in summaries if summary)


def _read_cpu_shares(nodes: Sequence[Mapping[str, Any]]) -> list[CpuShare]:
    return [read_cpu_share(read_numbers(node.get("summary"))) for node in nodes]


def _span_blocks(nodes: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """Return when the first block of some nodes began, and the time until the last one ended."""
    times = [(read_number(node.get("started")), read_number(node.get("duration_sec")) or 0.0)
             for node in nodes]  # fmt: skip
    known = [(start, start + took) for start, took in times if start is not None]
    if not known:
        return None
    begin = min(start for start, _ in known)
    return begin, max(end for _, end in known) - begin


@dataclass(frozen=True)
class _Axis:
    """Turns times into per cent of the workflow's length."""

    start: float
    length: float

    def width(self, seconds: float) -> float:
        """Return the width of a length of time."""
        return round(min(100.0, max(0.0, 100.0 * seconds / self.length)), 3)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the marks: round times, at most seven of them."""
        step = next((s for s in _ROUND_SEC if self.length / s <= _TICKS), self.length / _TICKS)
        count = int(self.length / step * (1 + 1e-9))
        return [(self.width(i * step), duration(i * step) if i else "0") for i in range(count + 1)]

    def place(self, moment: float) -> float:
        """Return the place of a time."""
        return self.width(moment - self.start)


def _build_bar(step: _Step, axis: _Axis) -> Bar:
    bar = Bar(step.name, 0.0, 0.0, status=step.status, critical=step.critical, run_id=step.run_id)
    bar.busy_pct = _find_busy_pct(step.cpus)
    parts = [f"waited {quantity(step.waited, 's')}"] if step.waited else []
    parts += [f"mlflow-perf itself {quantity(step.reporting, 's')}"] if step.reporting else []
    parts.append(f"ran {quantity(step.took, 's')}")
    if step.started is not None:
        bar.left, bar.width = axis.place(step.started), axis.width(step.took or 0.0)
        bar.share = f"{axis.width(step.took or 0.0):.0f}%" if step.critical else ""
        bar.waited = min(axis.width(step.waited or 0.0), bar.left)
        bar.reporting = min(axis.width(step.reporting), bar.left - bar.waited)
        if step.block is not None:
            begin, length = step.block
            bar.block_left = min(max(axis.place(begin), bar.left), bar.left + bar.width)
            bar.block_width = min(axis.width(length), bar.left + bar.width - bar.block_left)
            before = max(0.0, begin - step.started)
            after = max(0.0, (step.took or 0.0) - before - length)
            parts.append(
                f"start-up {quantity(before, 's')}, measured {quantity(length, 's')}, "
                f"end {quantity(after, 's')}"
            )
    if step.block is None:
        parts.append("not measured")
    bar.text = ", ".join([*parts, *filter(None, [str(step.cpus)])])
    if len(step.nodes) > 1:
        bar.nodes = [_build_node_bar(node, axis) for node in step.nodes[:_MOST_NODES]]
        bar.left_out = len(step.nodes) - len(bar.nodes)
    return bar


def _build_node_bar(node: Mapping[str, Any], axis: _Axis) -> Bar:
    bar = Bar(f"node {node.get('index', '–')}", 0.0, 0.0)
    (cpus,) = _read_cpu_shares([node])
    bar.busy_pct = _find_busy_pct(cpus)
    block = _span_blocks([node])
    if block is not None:
        bar.left, bar.width = axis.place(block[0]), axis.width(block[1])
        bar.block_left, bar.block_width = bar.left, bar.width
        took = f"measured {quantity(block[1], 's')}"
        bar.text = ", ".join(filter(None, [took, str(cpus)]))
    return bar


def _find_busy_pct(cpus: CpuShare) -> float | None:
    """Return the job's share of its CPUs; that of all processes where the job's is unknown."""
    if not cpus.limit:
        return None
    used = cpus.limit - cpus.idle if cpus.job is None and cpus.idle is not None else cpus.job
    return None if used is None else min(100.0, 100.0 * used / cpus.limit)


def _build_row(step: _Step) -> dict[str, Any]:
    """Return a step's row of the table: texts, and for each figure its value and its bar."""
    measured = step.block[1] if step.block else None
    summaries = [read_numbers(node.get("summary")) for node in step.nodes]
    memory = [s["job_max_mem_mb"] for s in summaries if "job_max_mem_mb" in s]
    held_mb = [s["mem_limit_mb"] for s in summaries if "mem_limit_mb" in s]
    used = [s["job_cpu_hours"] for s in summaries if "job_cpu_hours" in s]
    peak, hours = max(memory, default=None), sum(used) if used else None
    asked_mb = max(held_mb, default=None)
    of_asked = f" of {quantity(asked_mb, 'MB')}" if asked_mb and peak is not None else ""
    memory_pct = 100 * peak / asked_mb if asked_mb and peak is not None else None
    cpu_pct = _find_busy_pct(step.cpus) if step.cpus.job is not None else None
    imbalance = step.figures.get("run_imbalance_pct")
    cells = [
        (step.took, quantity(step.took, "s"), None),
        (measured, quantity(measured, "s"), None),
        (step.waited, quantity(step.waited, "s"), None),
        (float(len(step.nodes)), str(len(step.nodes) or 1), None),
        (cpu_pct, step.cpus.used if step.cpus.job is not None else MISSING, cpu_pct),
        (memory_pct, quantity(peak, "MB") + of_asked, memory_pct),
        (hours, MISSING if hours is None else cpu_time(hours), None),
        (imbalance, quantity(imbalance, "%"), None),
    ]
    return {
        "name": step.name,
        "status": step.status,
        "critical": step.critical,
        "run_id": step.run_id,
        "verdict": step.verdict,
        "advice": step.advice,
        "after": step.after,
        # Of a path its last name.
        "params": [
            (str(key), cut_text(str(value).rstrip("/").rpartition("/")[2], 40))
            for key, value in islice(step.params.items(), _MOST_NAMES)
        ],
        "cells": [
            {"value": value, "text": text, "share": None if share is None else min(100.0, share)}
            for value, text, share in cells
        ],
    }


def _build_tiles(data: Mapping[str, Any], steps: Sequence[_Step], took: float) -> Iterator[Tile]:
    run = _summarise([node for step in steps for node in step.nodes])
    totals = {
        "waited_sec": sum(step.waited or 0.0 for step in steps),
        "reporting_sec": sum(step.reporting for step in steps),
        "running_sec": sum(step.took or 0.0 for step in steps),
        "critical_running_sec": sum(step.took or 0.0 for step in steps if step.critical),
        **{key.removeprefix("run_"): value for key, value in run.items()},
        **read_numbers(data.get("totals")),
    }
    yield Tile("Duration", quantity(took, "s"), format_count(len(steps), "step"))
    running = quantity(totals["running_sec"], "s")
    if "outside_sec" in totals:
        yield Tile(
            "Start-up and end",
            quantity(totals["outside_sec"], "s"),
            f"of {running} that the steps ran",
            "Time of the steps before and after their measured blocks: starting the interpreter, "
            "importing, ending.",
        )
    yield Tile(
        "Waiting",
        quantity(totals["waited_sec"], "s"),
        f"running {running}",
        "Time in which steps were ready but did not run yet, summed over the steps.",
    )
    if totals["reporting_sec"]:
        yield Tile(
            "mlflow-perf itself",
            quantity(totals["reporting_sec"], "s"),
            "between the steps",
            "Time that mlflow-perf took to start and to report while the next step could not run.",
        )
    critical = totals["critical_running_sec"]
    if critical and took:
        share = f"{quantity(100.0 * critical / took, '%')} of the time"
        meaning = "Running time of the steps that decide how long the workflow takes."
        yield Tile("Critical path", quantity(critical, "s"), share, meaning)
    held = totals.get("cpu_hours")
    # Older versions had it under a key that means what nobody used.
    unused = totals.get("job_unused_cpu_hours", totals.get("unused_cpu_hours"))
    if held is not None and unused is not None:
        yield Tile(
            "CPU time used",
            cpu_time(max(0.0, held - unused), held),
            f"of {cpu_time(held)} held",
            "CPU time that the steps used in their measured blocks. What steps side by side on one "
            "machine held counts once.",
        )
    failed = sum(step.status in BROKEN for step in steps)
    if failed:
        yield Tile("Failed", format_count(failed, "step"))
