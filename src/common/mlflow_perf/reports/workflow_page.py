"""A workflow's Gantt and table as plain data. Imports the document, the summary and text.

Takes what `mlflow_perf.analysis.workflow` gives as a plain dictionary; a key that is missing there
is missing on the page, nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlflow_perf.core.format import clock_time, cpu_time, duration, quantity
from mlflow_perf.core.json_io import read_number, read_numbers
from mlflow_perf.model.document import worst_status
from mlflow_perf.model.summary import summarise_run
from mlflow_perf.reports.tables import Tile

__all__ = ["Bar", "Workflow", "build_workflow_page"]

_MOST_STEPS = 1000
_MOST_NODES = 64
_TICKS = 6
_LONGEST_SEC = 1e15  # the difference of two times of a damaged file may be infinite


@dataclass
class Bar:
    """One line of the Gantt; places are in per cent of the workflow's time.

    Attributes:
        label: Step, or node.
        left: Where it starts running.
        width: How long it runs.
        waited: How long it waited before that.
        busy_pct: How busy its CPUs were, None where it is not known.
        text: What it says to a reader: times and figures.
        status: As MLflow's.
        critical: Whether the step stands on the critical path.
        run_id: The step's run, or empty.
        nodes: The bars of the step's nodes, when there are several.
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


@dataclass
class Workflow:
    """What the page of a workflow shows.

    Attributes:
        name: The workflow.
        status: The worst of its steps.
        started: When it started, as text.
        tiles: Headline figures.
        findings: What to change first, one sentence each.
        critical_path: Names of the steps that decide how long it takes.
        ticks: Place in per cent and text of the marks on the time axis.
        bars: The Gantt's lines, in the order of the start.
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


def build_workflow_page(data: Mapping[str, Any]) -> Workflow:
    """Return what the page shows of a workflow."""
    steps = sorted(
        _dicts(data.get("steps")), key=lambda step: read_number(step.get("started")) or 0.0
    )
    start, end = _span(data, steps)
    axis = _Axis(start, min(max(end - start, 1e-9), _LONGEST_SEC))
    return Workflow(
        name=str(data.get("name") or ""),
        status=worst_status(str(step.get("status") or "") for step in steps),
        started=clock_time(start) if start > 0 else "",
        tiles=_tiles(data, steps, end - start),
        findings=[str(text) for text in _list(data.get("findings"))],
        critical_path=[str(name) for name in _list(data.get("critical_path"))],
        ticks=axis.ticks(),
        bars=[_bar(step, axis) for step in steps[:_MOST_STEPS]],
        rows=[_row(step) for step in steps[:_MOST_STEPS]],
        left_out=max(0, len(steps) - _MOST_STEPS),
    )


def _dicts(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in _list(value) if isinstance(one, Mapping)]


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _span(data: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return when the first step was ready, and when the last one ended."""
    starts, ends = [], []
    for step in (data, *steps):
        started, took = read_number(step.get("started")), read_number(step.get("duration_sec"))
        if started is not None:
            starts.append(started - (read_number(step.get("waited_sec")) or 0.0))
            ends.append(started + (took or 0.0))
    return (min(starts), max(ends)) if starts else (0.0, 0.0)


@dataclass(frozen=True)
class _Axis:
    """Turns times into per cent of the workflow's length."""

    start: float
    length: float

    def place(self, moment: float) -> float:
        """Return where a moment stands."""
        return round(min(100.0, max(0.0, 100.0 * (moment - self.start) / self.length)), 3)

    def width(self, seconds: float) -> float:
        """Return how wide a length of time is."""
        return round(min(100.0, max(0.0, 100.0 * seconds / self.length)), 3)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the marks: round times, at most seven of them."""
        step = next((s for s in _ROUND_SEC if self.length / s <= _TICKS), self.length / _TICKS)
        count = int(self.length / step * (1 + 1e-9))
        return [(self.width(i * step), duration(i * step) if i else "0") for i in range(count + 1)]


_ROUND_SEC = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200),
    *(86400 * days for days in (1, 2, 5, 10, 30, 100, 365)),
)


def _bar(step: Mapping[str, Any], axis: _Axis) -> Bar:
    nodes = _dicts(step.get("nodes"))
    bar = _line(str(step.get("name") or "–"), step, axis)
    bar.waited = min(axis.width(read_number(step.get("waited_sec")) or 0.0), bar.left)
    bar.busy_pct = _figures(step, nodes).get("run_cpu_avg_utilization_pct")
    bar.text = _text(step, bar.busy_pct)
    bar.status, bar.critical = str(step.get("status") or ""), bool(step.get("critical"))
    bar.run_id = str(step.get("run_id") or "")
    if len(nodes) > 1:
        bar.nodes = [_node_bar(node, axis) for node in nodes[:_MOST_NODES]]
        bar.left_out = max(0, len(nodes) - _MOST_NODES)
    return bar


def _line(label: str, data: Mapping[str, Any], axis: _Axis) -> Bar:
    started, took = read_number(data.get("started")), read_number(data.get("duration_sec")) or 0.0
    if started is None:
        return Bar(label, 0.0, 0.0)
    return Bar(label, axis.place(started), axis.width(took))


def _node_bar(node: Mapping[str, Any], axis: _Axis) -> Bar:
    bar = _line(f"node {node.get('index', '–')}", node, axis)
    bar.busy_pct = read_numbers(node.get("summary")).get("cpu_avg_utilization_pct")
    bar.text = _text(node, bar.busy_pct)
    return bar


def _text(data: Mapping[str, Any], busy_pct: float | None) -> str:
    parts = [f"ran {quantity(read_number(data.get('duration_sec')), 's')}"]
    if waited := read_number(data.get("waited_sec")):
        parts.insert(0, f"waited {quantity(waited, 's')}")
    if busy_pct is not None:
        parts.append(f"CPU {quantity(busy_pct, '%')}")
    return ", ".join(parts)


def _run(nodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the run-level figures of a step from its nodes."""
    summaries = [read_numbers(node.get("summary")) for node in nodes]
    return summarise_run(summary for summary in summaries if summary)


def _figures(step: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the run-level figures of a step: as given, else from its nodes."""
    return {**_run(nodes), **read_numbers(step.get("figures"))}


_COLUMNS = (
    ("run_cpu_avg_utilization_pct", "%", "CPU busy"),
    ("run_cpu_hours", "CPU h", "Held"),
    ("run_unused_cpu_hours", "CPU h", "Unused"),
    ("run_max_t_mem_percent", "%", "Memory peak"),
    ("run_imbalance_pct", "%", "Imbalance"),
)


def _row(step: Mapping[str, Any]) -> dict[str, Any]:
    nodes = _dicts(step.get("nodes"))
    run = _figures(step, nodes)
    waited, took = read_number(step.get("waited_sec")), read_number(step.get("duration_sec"))
    cells = [(took, quantity(took, "s")), (waited, quantity(waited, "s"))]
    cells += [(float(len(nodes)), str(len(nodes) or 1))]
    cells += [(run.get(key), quantity(run.get(key), unit)) for key, unit, _ in _COLUMNS]
    return {
        "name": str(step.get("name") or "–"),
        "status": str(step.get("status") or ""),
        "critical": bool(step.get("critical")),
        "run_id": str(step.get("run_id") or ""),
        "after": ", ".join(str(name) for name in _list(step.get("depends_on"))),
        "cells": [{"value": value, "text": text} for value, text in cells],
    }


_CRITICAL = "Running time of the steps that decide how long the workflow takes."


def _tiles(
    data: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], length: float
) -> list[Tile]:
    totals = _totals(data, steps)
    took = read_number(data.get("duration_sec")) or length
    tiles = [
        Tile("Duration", quantity(took, "s"), _counted(len(steps), "step")),
        Tile(
            "Waiting",
            quantity(totals["waited_sec"], "s"),
            f"running {quantity(totals['running_sec'], 's')}",
            "Time in which steps were ready but did not run yet, summed over the steps.",
        ),
        *_hours_tiles(totals),
    ]
    critical = totals["critical_running_sec"]
    if critical and took:
        share = f"{quantity(100.0 * critical / took, '%')} of the time"
        tiles.insert(2, Tile("Critical path", quantity(critical, "s"), share, _CRITICAL))
    failed = sum(step.get("status") in ("FAILED", "KILLED") for step in steps)
    return [*tiles, Tile("Failed", _counted(failed, "step"))] if failed else tiles


def _totals(data: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures of the whole: as given, else from the steps."""
    run = _run([node for step in steps for node in _dicts(step.get("nodes"))])
    critical = [step for step in steps if step.get("critical")]
    return {
        "waited_sec": _sum(steps, "waited_sec"),
        "running_sec": _sum(steps, "duration_sec"),
        "critical_running_sec": _sum(critical, "duration_sec"),
        **{key.removeprefix("run_"): value for key, value in run.items()},
        **read_numbers(data.get("totals")),
    }


def _sum(steps: Sequence[Mapping[str, Any]], key: str) -> float:
    return sum(read_number(step.get(key)) or 0.0 for step in steps)


def _hours_tiles(totals: Mapping[str, float]) -> list[Tile]:
    tiles = []
    if "cpu_avg_utilization_pct" in totals:
        busy = quantity(totals["cpu_avg_utilization_pct"], "%")
        tiles.append(Tile("CPU busy", busy, "weighted by hours"))
    if "unused_cpu_hours" in totals:
        held = totals.get("cpu_hours")
        detail = "" if held is None else f"of {cpu_time(held)}"
        tiles.append(Tile("CPU unused", cpu_time(totals["unused_cpu_hours"], held), detail))
    return tiles


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count:,} {what}s"
