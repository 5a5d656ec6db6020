"""Nextflow's `trace.txt`, or the same as CSV; with units or raw.

https://www.nextflow.io/docs/latest/reports.html#trace-file
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice

from mlflow_perf.histories.table import Row, Table
from mlflow_perf.histories.tasks import Task, Workflow

_MS = 1e-3
# A task that is CACHED did not run: its figures are those of an earlier execution.
_STATUS = {"COMPLETED": "FINISHED", "FAILED": "FAILED", "ABORTED": "KILLED"}
_KILLED = "137"
_NEAR_LIMIT = 0.7
"""A task that was killed while it used this share of its memory needed more."""

_FILES = ("trace", "execution_trace", "pipeline_trace", "execution")


def is_trace(table: Table) -> bool:
    """Return whether the heading line is that of a Nextflow trace."""
    names = set(table.header)
    return "status" in names and bool({"realtime", "duration"} & names) and (
        "task_id" in names or "hash" in names
    )  # fmt: skip


def read_trace(tables: Sequence[Table]) -> list[Workflow]:
    """Return the workflow of each trace file.

    Raises:
        SettingError: A line cannot be read; the message names file and line.
    """
    workflows = []
    for table in tables:
        rows = [*table.rows(partial(_rejoin, table=table))]
        read = [_read_task(row) for row in rows]
        tasks = [task for task in read if task is not None]
        first = {task.component.partition(":")[0] for task in tasks if ":" in task.component}
        name = table.path.name.partition(".")[0]
        if len(first) == 1:
            name = first.pop()
        elif name.startswith(_FILES):
            name = table.path.resolve().parent.name
        left_out = len(read) - len(tasks)
        # Of a run that was interrupted, tasks end before they run; an attempt of one may do so too.
        ran = {task.name for task in tasks}
        never_ran = [row for row in rows if _name_task(row) not in ran]
        broken = frozenset(_STATUS[s] for row in never_ran if (s := row.text("status")) in _STATUS)
        made = Workflow("nextflow", name or "nextflow", tuple(tasks), left_out, broken=broken)
        workflows.append(made)
    return workflows


def _name_task(row: Row) -> str:
    return row.text("name") or row.text("process")


def _rejoin(cells: list[str], table: Table) -> list[str]:
    """Return the cells of a line whose tag holds the separator: Nextflow does not quote it.

    The tag is in two neighbouring columns: `tag`, and `name` as `PROCESS (tag)`.
    """
    extra = len(cells) - len(table.header)
    if "name" not in table.header:
        return cells
    at = table.header.index("name")
    widths = {at: 1 + extra}
    if at and table.header[at - 1] == "tag":
        widths = {at - 1: 1 + extra // 2, at: 1 + extra - extra // 2}
    rest = iter(cells)
    parts = [islice(rest, widths.get(i, 1)) for i in range(len(table.header))]
    joined = [table.delimiter.join(part) for part in parts]
    fits = "tag" not in table.header or joined[at].endswith(f"({joined[at - 1]})")
    return joined if fits and not any(rest) else cells


def _read_task(row: Row) -> Task | None:
    """Return a task that ran; None if it was never started, is still running or was cached."""
    status = _STATUS.get(row.text("status"))
    # `realtime` is the task alone; `duration` counts its wait in the queue, too.
    whole = row.seconds("duration", unit_sec=_MS)
    ran = row.seconds("realtime", unit_sec=_MS)
    ran = whole if ran is None else ran
    title = _name_task(row)
    process = row.text("process") or title.partition(" (")[0]
    if status is None or ran is None or not process:
        return None
    submitted, started = (row.time(name, unit_sec=_MS) for name in ("submit", "start"))
    if started is None and submitted is not None:  # `start` is none of the columns by default
        started = submitted + max(0.0, (whole or 0.0) - ran)
    cpu_pct = row.number("%cpu")
    peak, limit = row.size_mb("peak_rss", "rss"), row.size_mb("memory")
    exit_code = row.text("exit")
    killed = exit_code == _KILLED and status != "FINISHED"
    params = {"read_mb": row.size_mb("rchar"), "cpus": row.number("cpus")}
    tags = {
        "mlflow_perf.hostname": row.text("hostname"),
        "mlflow_perf.attempt": row.text("attempt"),
        "mlflow_perf.exit_code": exit_code,
        "mlflow_perf.hash": row.text("hash"),
    }
    return Task(
        key="/".join(("nextflow", row.text("hash"), row.text("task_id"), row.text("submit"))),
        component=process,
        name=title,
        status=status,
        duration_sec=ran,
        started=started,
        submitted=submitted,
        cpus=params["cpus"],
        cpu_sec=None if cpu_pct is None else cpu_pct / 100.0 * ran,
        memory_limit_mb=limit,
        peak_mb=peak,
        disk_read_mb=row.size_mb("read_bytes"),
        disk_write_mb=row.size_mb("write_bytes"),
        # Without its exit code, or what it asked for, nobody knows.
        out_of_memory=None
        if not exit_code or (killed and limit is None)
        else killed and (not peak or peak >= _NEAR_LIMIT * (limit or 0.0)),
        params={name: value for name, value in params.items() if value is not None},
        tags={name: value for name, value in tags.items() if value},
    )
