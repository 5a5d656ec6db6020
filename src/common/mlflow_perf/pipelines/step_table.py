"""What each step took, as rows of plain data and as a table. Imports `runs`, `graph` and `step`.

The figures come from the steps' MLflow runs; a step that does not report its own shows what the
runner measured of its processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mlflow_perf.pipelines.graph import Graph
from mlflow_perf.pipelines.runner import Result
from mlflow_perf.pipelines.step import Outcome
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.search import find_children, get_run

__all__ = ["Row", "render", "rows_of"]


@dataclass(frozen=True, slots=True)
class Row:
    """One step's figures; None where nobody measured it.

    Attributes:
        step: Name of the step.
        status: How it ended.
        duration_sec: From its start to its end, the interpreter's start included.
        nodes: Number of nodes.
        cpu_hours_used: CPU-hours that were busy, all nodes.
        cpu_hours_unused: CPU-hours that were held and idle, all nodes.
        max_mem_mb: Peak memory of the job on the node with the highest.
        io_read_mb: Read from disks, all nodes.
        io_write_mb: Written to disks, all nodes.
        reported: Whether the step reported itself; else the runner measured.
        run_id: Its MLflow run.
        message: What went wrong.
    """

    step: str
    status: str
    duration_sec: float
    nodes: int
    cpu_hours_used: float | None = None
    cpu_hours_unused: float | None = None
    max_mem_mb: float | None = None
    io_read_mb: float | None = None
    io_write_mb: float | None = None
    reported: bool = False
    run_id: str | None = None
    message: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)


def rows_of(graph: Graph, result: Result) -> list[Row]:
    """Return the row of each step, in the order of the graph."""
    runs = {run.run_id: run for run in find_children(get_run(result.run_id), documents=True)}
    return [
        _row(outcome, graph.steps[name].instances, runs.get(outcome.run_id))
        for name, outcome in result.steps.items()
    ]


def _row(outcome: Outcome, instances: int, run: PerfRun | None) -> Row:
    row = Row(
        step=outcome.name,
        status=outcome.status,
        duration_sec=outcome.duration_sec,
        nodes=instances,
        run_id=outcome.run_id,
        message=outcome.message,
    )
    if outcome.status == "SKIPPED":
        return row
    nodes = list(run.nodes.values()) if run is not None else []
    if not nodes:
        return _measured(row, outcome)
    return replace(
        row,
        nodes=len(nodes),
        cpu_hours_used=_total(nodes, "node_used_cpu_hours"),
        cpu_hours_unused=_total(nodes, "node_unused_cpu_hours"),
        max_mem_mb=_largest(nodes, "job_max_mem_mb") or outcome.max_rss_mb or None,
        io_read_mb=_total(nodes, "job_io_read_mb", "total_disk_io_read_mb"),
        io_write_mb=_total(nodes, "job_io_write_mb", "total_disk_io_write_mb"),
        reported=True,
    )


def _measured(row: Row, outcome: Outcome) -> Row:
    used = outcome.cpu_sec / 3600
    return replace(row, cpu_hours_used=used, max_mem_mb=outcome.max_rss_mb or None)


_Nodes = Sequence[Mapping[str, float]]


def _total(nodes: _Nodes, *keys: str) -> float | None:
    """Return the sum over the nodes of the first of the metrics that any of them has."""
    for key in keys:
        found = [node[key] for node in nodes if key in node]
        if found:
            return sum(found)
    return None


def _largest(nodes: _Nodes, key: str) -> float | None:
    return max((node[key] for node in nodes if key in node), default=None)


_HEAD = (
    "step",
    "status",
    "seconds",
    "nodes",
    "CPU h used",
    "unused",
    "peak MB",
    "read MB",
    "wrote",
)


def render(rows: list[Row]) -> str:
    """Return the rows as a table of plain text."""
    lines = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
    text = ["  ".join(_pad(cell, widths[i], i) for i, cell in enumerate(line)) for line in lines]
    text.insert(1, "  ".join("─" * width for width in widths))
    if any(not r.reported and r.status == "FINISHED" for r in rows):
        text.append("* measured by the runner: the step does not report itself")
    return "\n".join(line.rstrip() for line in text)


def _cells(row: Row) -> tuple[str, ...]:
    mark = "" if row.reported or row.cpu_hours_used is None else "*"
    return (
        row.step + mark,
        row.status,
        f"{row.duration_sec:.1f}",
        str(row.nodes),
        _number(row.cpu_hours_used, 5),
        _number(row.cpu_hours_unused, 5),
        _number(row.max_mem_mb, 0),
        _number(row.io_read_mb, 1),
        _number(row.io_write_mb, 1),
    )


def _number(value: float | None, places: int) -> str:
    return "–" if value is None else f"{value:.{places}f}"


def _pad(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column < 2 else cell.rjust(width)
