"""Collect the figures of each step as a row of plain data.

The figures come from the steps' MLflow runs; for a step that does not report itself, they are those
that the runner measured.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mlflow_perf.analysis.workflow import build_step
from mlflow_perf.pipelines.graph import Graph
from mlflow_perf.pipelines.result import Result
from mlflow_perf.pipelines.store_calls import StoreCalls
from mlflow_perf.publish.workflow_report import log_workflow
from mlflow_perf.publish.workflow_writer import Tracking
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.search import find_children, get_runs


@dataclass(frozen=True, slots=True)
class Row:
    """One step's figures; None if nothing measured it.

    Attributes:
        step: Name of the step.
        status: How it ended.
        duration_sec: That of its MLflow run; without a run, as the runner saw it.
        nodes: Number of nodes.
        measured_sec: How long the figures below were measured, from the first node's begin to the
            last one's end: a step that reports itself is measured from the start of its block.
        cpu_hours_used: CPU-hours of the step's own processes on all nodes.
        cpu_hours_unused: CPU-hours that it held in its measured blocks and did not use itself.
        max_mem_mb: Peak memory of the job on the node with the highest.
        io_read_mb: Read from disks by all nodes.
        io_write_mb: Written to disks by all nodes.
        reported: Whether the step reported itself; else the runner measured it.
        run_id: Its MLflow run.
        message: What went wrong.
    """

    step: str
    status: str
    duration_sec: float
    nodes: int
    measured_sec: float | None = None
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


def log_report(result: Result, tracking: Tracking, store: StoreCalls) -> bool:
    """Log the report of the whole workflow, and return whether MLflow took it.

    Args:
        result: How it ended; gets the duration that the report has, and the runs of the steps.
            Where MLflow does not have its end, there is no report: `recover` makes it.
        tracking: Where its runs are.
        store: Asks MLflow.
    """

    def parent() -> PerfRun:
        return get_runs([result.run_id], documents=False)[0]

    def log() -> list[PerfRun]:
        # Without its end, the workflow would seem to end with the last step that MLflow has ended.
        workflow = log_workflow(result.run_id, tracking)[0] if result.is_ended else None
        if workflow is not None:
            result.duration_sec = workflow.duration_sec
        return find_children(parent(), documents=True)

    found = store.ask(log, "The workflow's report could not be logged", is_long=True)
    # Where only the store of the artifacts fails, the runs have the figures of steps of one node.
    brief = found or store.ask(
        lambda: find_children(parent(), documents=False),
        "The figures of the steps could not be read",
    )
    result.runs = tuple(brief or ())
    return found is not None and result.is_ended


def build_rows(graph: Graph, result: Result) -> list[Row]:
    """Return the row of each step, in the order of the graph.

    There are rows, with what the runner knows, even if MLflow does not answer.

    Args:
        graph: The pipeline.
        result: How it ended.
    """
    runs = {run.run_id: run for run in result.runs}
    of_steps = {run.step: run for run in runs.values()}
    rows = []
    for name, outcome in result.steps.items():
        row = Row(
            step=outcome.name,
            status=outcome.status,
            duration_sec=outcome.duration_sec,
            nodes=graph.steps[name].instances,
            run_id=outcome.run_id,
            message=outcome.message,
        )
        # Where MLflow made no run in time, the end of the pipeline has.
        run = runs.get(outcome.run_id) if outcome.run_id else of_steps.get(name)
        nodes = list(run.nodes.values()) if run is not None else []
        if run is not None and run.duration_sec and outcome.status != "SKIPPED":
            row = replace(row, duration_sec=run.duration_sec)  # as in MLflow and `show`
        if run is not None and nodes and outcome.status != "SKIPPED":
            held, used = _sum(nodes, "node_cpu_hours"), _sum(nodes, "job_cpu_hours")
            row = replace(
                row,
                nodes=len(nodes),
                measured_sec=build_step("", run, time.time()).measured_sec or None,
                cpu_hours_used=_sum(nodes, "job_cpu_hours", "node_used_cpu_hours"),
                cpu_hours_unused=max(0.0, held - used)
                if held is not None and used is not None
                else _sum(nodes, "node_unused_cpu_hours"),
                max_mem_mb=max(n.get("job_max_mem_mb", 0.0) for n in nodes) or None,
                io_read_mb=_sum(nodes, "job_io_read_mb", "total_disk_io_read_mb"),
                io_write_mb=_sum(nodes, "job_io_write_mb", "total_disk_io_write_mb"),
                reported=outcome.reported,
            )
        rows.append(row)
    return rows


def _sum(nodes: Sequence[Mapping[str, float]], *keys: str) -> float | None:
    """Return the sum over the nodes of the first metric that any of them has."""
    for key in keys:
        found = [node[key] for node in nodes if key in node]
        if found:
            return sum(found)
    return None
