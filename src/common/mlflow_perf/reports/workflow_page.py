"""The page of a workflow as plain data: Gantt, tiles and table of the steps.

The input is the plain data of `mlflow_perf.analysis.workflow`, also from an older `workflow.json`:
a missing key is left out of the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlflow_perf.core.format import clock_time, cpu_time, duration, format_count, quantity
from mlflow_perf.core.json_io import read_number, read_numbers
from mlflow_perf.model.document import worst_status
from mlflow_perf.model.summary import summarise_run
from mlflow_perf.reports.tables import Tile

__all__ = ["Bar", "WorkflowPage", "build_workflow_page"]

_MOST_STEPS = 1000
_MOST_NODES = 64
_TICKS = 6
_LONGEST_SEC = 1e15  # the difference of two times of a damaged file may be infinite
_ROUND_SEC = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200),
    *(86400 * days for days in (1, 2, 5, 10, 30, 100, 365)),
)
_COLUMNS = (
    ("run_cpu_avg_utilization_pct", "%"),
    ("run_cpu_hours", "CPU h"),
    ("run_unused_cpu_hours", "CPU h"),
    ("run_max_t_mem_percent", "%"),
    ("run_imbalance_pct", "%"),
)


@dataclass
class Bar:
    """One line of the Gantt; places are in per cent of the workflow's time.

    Attributes:
        label: Name of the step or node.
        left: Start of its run.
        width: Length of its run.
        waited: Length of its wait before that.
        busy_pct: How busy its CPUs were, None if unknown.
        text: Times and figures in words.
        status: As MLflow's.
        critical: Whether the step is on the critical path.
        run_id: The step's run, or empty.
        nodes: The bars of the step's nodes, if there are several.
        left_out: How many nodes are not shown.
    """

    label: str
    left: float
    width: float
    waited: float = 0.0
    busy_pct: float | None = None
    text: str = ""
    status: str = ""
    critical: bool = False
    run_id: str = ""
    nodes: list[Bar] = field(default_factory=list)
    left_out: int = 0


@dataclass(frozen=True)
class WorkflowPage:
    """The content of a workflow's page.

    Attributes:
        name: Name of the workflow.
        status: The worst of its steps.
        started: Start time, as text.
        tiles: Headline figures.
        findings: What to change first, one sentence each.
        critical_path: Names of the steps that determine the duration.
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
    critical_path: list[str] = field(default_factory=list)
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
        nodes: The data of its nodes.
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
        self.after = ", ".join(str(name) for name in _read_list(data.get("depends_on")))
        self.nodes = _read_mappings(data.get("nodes"))
        self.figures = {**_summarise(self.nodes), **read_numbers(data.get("figures"))}


def build_workflow_page(data: Mapping[str, Any]) -> WorkflowPage:
    """Return the page of a workflow.

    Args:
        data: The workflow as plain data.
    """
    steps = [_Step(step) for step in _read_mappings(data.get("steps"))]
    steps.sort(key=lambda step: step.started or 0.0)
    spans = [(s.started - (s.waited or 0.0), s.started + (s.took or 0.0))
             for s in (_Step(data), *steps) if s.started is not None]  # fmt: skip
    start = min((begin for begin, _ in spans), default=0.0)
    length = max((end for _, end in spans), default=0.0) - start
    axis = _Axis(start, min(max(length, 1e-9), _LONGEST_SEC))
    shown = steps[:_MOST_STEPS]
    return WorkflowPage(
        name=str(data.get("name") or ""),
        status=worst_status(step.status for step in steps),
        started=clock_time(start) if start > 0 else "",
        tiles=list(_build_tiles(data, steps, read_number(data.get("duration_sec")) or length)),
        findings=[str(text) for text in _read_list(data.get("findings"))],
        critical_path=[str(name) for name in _read_list(data.get("critical_path"))],
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

    def line(
        self, label: str, started: float | None, took: float | None, busy_pct: float | None,
        waited: float | None = None,
    ) -> Bar:  # fmt: skip
        """Return a line of the Gantt."""
        parts = [f"waited {quantity(waited, 's')}"] if waited else []
        parts.append(f"ran {quantity(took, 's')}")
        if busy_pct is not None:
            parts.append(f"CPU {quantity(busy_pct, '%')}")
        bar = Bar(label, 0.0, 0.0, busy_pct=busy_pct, text=", ".join(parts))
        if started is not None:
            bar.left, bar.width = self.width(started - self.start), self.width(took or 0.0)
            bar.waited = min(self.width(waited or 0.0), bar.left)
        return bar


def _build_bar(step: _Step, axis: _Axis) -> Bar:
    busy_pct = step.figures.get("run_cpu_avg_utilization_pct")
    bar = axis.line(step.name, step.started, step.took, busy_pct, step.waited)
    bar.status, bar.critical, bar.run_id = step.status, step.critical, step.run_id
    if len(step.nodes) > 1:
        for node in step.nodes[:_MOST_NODES]:
            label = f"node {node.get('index', '–')}"
            started, took = read_number(node.get("started")), read_number(node.get("duration_sec"))
            busy_pct = read_numbers(node.get("summary")).get("cpu_avg_utilization_pct")
            bar.nodes.append(axis.line(label, started, took, busy_pct))
        bar.left_out = len(step.nodes) - len(bar.nodes)
    return bar


def _build_row(step: _Step) -> dict[str, Any]:
    count = len(step.nodes)
    cells = [(step.took, quantity(step.took, "s")), (step.waited, quantity(step.waited, "s"))]
    cells += [(float(count), str(count or 1))]
    cells += [(step.figures.get(k), quantity(step.figures.get(k), unit)) for k, unit in _COLUMNS]
    return {
        "name": step.name,
        "status": step.status,
        "critical": step.critical,
        "run_id": step.run_id,
        "after": step.after,
        "cells": [{"value": value, "text": text} for value, text in cells],
    }


def _build_tiles(data: Mapping[str, Any], steps: Sequence[_Step], took: float) -> Iterator[Tile]:
    run = _summarise([node for step in steps for node in step.nodes])
    totals = {
        "waited_sec": sum(step.waited or 0.0 for step in steps),
        "running_sec": sum(step.took or 0.0 for step in steps),
        "critical_running_sec": sum(step.took or 0.0 for step in steps if step.critical),
        **{key.removeprefix("run_"): value for key, value in run.items()},
        **read_numbers(data.get("totals")),
    }
    yield Tile("Duration", quantity(took, "s"), format_count(len(steps), "step"))
    yield Tile(
        "Waiting",
        quantity(totals["waited_sec"], "s"),
        f"running {quantity(totals['running_sec'], 's')}",
        "Time in which steps were ready but did not run yet, summed over the steps.",
    )
    critical = totals["critical_running_sec"]
    if critical and took:
        share = f"{quantity(100.0 * critical / took, '%')} of the time"
        meaning = "Running time of the steps that decide how long the workflow takes."
        yield Tile("Critical path", quantity(critical, "s"), share, meaning)
    if "cpu_avg_utilization_pct" in totals:
        busy = quantity(totals["cpu_avg_utilization_pct"], "%")
        yield Tile("CPU busy", busy, "weighted by hours")
    if "unused_cpu_hours" in totals:
        held = totals.get("cpu_hours")
        detail = "" if held is None else f"of {cpu_time(held)}"
        yield Tile("CPU unused", cpu_time(totals["unused_cpu_hours"], held), detail)
    failed = sum(step.status in ("FAILED", "KILLED") for step in steps)
    if failed:
        yield Tile("Failed", format_count(failed, "step"))
