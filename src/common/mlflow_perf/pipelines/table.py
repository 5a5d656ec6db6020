"""What each step took, as rows of plain data and as a table. Imports `step` and `tracking`.

The figures come from the steps' MLflow runs; a step that does not report its own shows what the
runner measured of its processes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mlflow_perf.pipelines.graph import Graph
from mlflow_perf.pipelines.runner import Result
from mlflow_perf.pipelines.step import Outcome
from mlflow_perf.sinks.tracking import Tracking

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


def rows_of(graph: Graph, result: Result, tracking: Tracking) -> list[Row]:
    """Return the row of each step, in the order of the graph."""
    return [
        _row(outcome, graph.steps[name].instances, tracking)
        for name, outcome in result.steps.items()
    ]


def _row(outcome: Outcome, instances: int, tracking: Tracking) -> Row:
    row = Row(
        step=outcome.name,
        status=outcome.status,
        duration_sec=outcome.duration_sec,
        nodes=instances,
        run_id=outcome.run_id,
        message=outcome.message,
    )
    if outcome.run_id is None or outcome.status == "SKIPPED":
        return row
    figures = _Figures(tracking, outcome.run_id)
    if not figures.has("duration_sec"):
        return _measured(row, outcome)
    return Row(
        **{
            **row.as_dict(),
            "nodes": figures.count("duration_sec"),
            "cpu_hours_used": figures.total("node_used_cpu_hours"),
            "cpu_hours_unused": figures.total("node_unused_cpu_hours"),
            "max_mem_mb": figures.largest("job_max_mem_mb") or outcome.max_rss_mb or None,
            "io_read_mb": figures.total("job_io_read_mb", "total_disk_io_read_mb"),
            "io_write_mb": figures.total("job_io_write_mb", "total_disk_io_write_mb"),
            "reported": True,
        }
    )


def _measured(row: Row, outcome: Outcome) -> Row:
    return Row(
        **{
            **row.as_dict(),
            "cpu_hours_used": outcome.cpu_sec / 3600,
            "max_mem_mb": outcome.max_rss_mb or None,
        }
    )


class _Figures:
    """The metrics of one run, by node."""

    def __init__(self, tracking: Tracking, run_id: str) -> None:
        self._tracking = tracking
        self._run_id = run_id
        self._last = tracking.keys(run_id)
        self._nodes: dict[str, dict[int, float]] = {}

    def has(self, key: str) -> bool:
        return key in self._last

    def by_node(self, key: str) -> dict[int, float]:
        if not self.has(key):
            return {}
        if key not in self._nodes:
            self._nodes[key] = self._tracking.history(self._run_id, key)
        return self._nodes[key]

    def count(self, key: str) -> int:
        return len(self.by_node(key))

    def total(self, *keys: str) -> float | None:
        found = next((self.by_node(key) for key in keys if self.has(key)), None)
        return None if found is None else sum(found.values())

    def largest(self, key: str) -> float | None:
        return max(self.by_node(key).values(), default=None)


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
