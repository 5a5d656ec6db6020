"""The chain of tasks that a workflow's end had to wait for.

May import errors, spans.analyses, spans.columns, spans.schema.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.analyses.timings import DEFAULT_ROOT, Database, Row, span_times
from mlflow_perf.spans.database.event_arrays import columns_of
from mlflow_perf.spans.database.schema import reading

__all__ = ["critical_path"]

# The events that say that a task's code runs, in any of the sources.
_RUNNING = ("running", "worker_received_task", "RUNNING")
_NEVER = 1 << 63
_ABOUT = (
    "SELECT s.id, s.key, n.text FROM span_row s LEFT JOIN string n ON n.id = s.name_id"
    " JOIN string t ON t.id = s.type_id JOIN scope c ON c.id = s.scope_id"
    " WHERE t.text = ? AND (? IS NULL OR c.name LIKE '%' || ? || '%')"
)


@dataclass(frozen=True)
class _Tasks:
    """What is known of the tasks, by the number of their spans; times in microseconds."""

    key: dict[int, object]
    name: dict[int, str | None]
    start: dict[int, int]
    end: dict[int, int]
    runs: dict[int, list[int]]
    needs: dict[int, list[int]]


def critical_path(db: Database, root: str = DEFAULT_ROOT, *, run: str | None = None) -> list[Row]:
    """Return the chain of tasks that ended last, each the one that the next had to wait for.

    Args:
        db: The database; its dependencies come from Parsl (`task_depends` or the log).
        root: The type of the tasks.
        run: The run's id or a part of it; without it, the run whose task ended last.

    Returns:
        Rows in the order of time: `task`, `name`, `released_s` (Unix time at which it could start:
        what it needed had ended), `running_s` (at which it did; None where no source tells),
        `ended_s`, `waited_s` and `ran_s`.

    Raises:
        SpansError: There are no such tasks, or none has both a first and a last event.
    """
    with reading(db) as connection:
        tasks = _tasks(connection, root, run)
    if not tasks.end:
        where = f" of the run {run!r}" if run else ""
        raise SpansError(f"There are no spans of type {root!r}{where} that have ended.")
    chain = [max(tasks.end, key=lambda t: tasks.end[t])]
    while before := _last_needed(tasks, chain):
        chain.append(before)
    return [_row(tasks, task) for task in reversed(chain)]


def _last_needed(tasks: _Tasks, chain: list[int]) -> int | None:
    """Return which of the tasks that the chain's end needed ended last; cycles end."""
    last = chain[-1]
    # What ended after the task cannot have kept it waiting, whatever the database says it needed.
    needs = [n for n in tasks.needs[last] if tasks.end.get(n, _NEVER) <= tasks.end[last]]
    needs = [n for n in needs if n not in chain]
    return max(needs, key=lambda t: tasks.end[t], default=None)


def _row(tasks: _Tasks, task: int) -> Row:
    end = tasks.end[task]
    needed = [at for n in tasks.needs[task] if (at := tasks.end.get(n, _NEVER)) <= end]
    released = max([tasks.start[task], *needed])
    # The last of its tries counts: what ran before it was in vain, and so is waiting.
    running = max((t for t in tasks.runs[task] if released <= t <= end), default=None)
    began = released if running is None else running
    return {
        "task": tasks.key[task],
        "name": tasks.name[task],
        "released_s": released / 1e6,
        "running_s": None if running is None else running / 1e6,
        "ended_s": end / 1e6,
        "waited_s": (began - released) / 1e6,
        "ran_s": (end - began) / 1e6,
    }


def _tasks(db: sqlite3.Connection, root: str, run: str | None) -> _Tasks:
    columns = columns_of(db)
    about = db.execute(_ABOUT, (root, run, run)).fetchall()
    key = {span: key for span, key, _ in about}
    spans, start, end = (array.tolist() for array in span_times(columns))
    times = {s: (a, b) for s, a, b in zip(spans, start, end, strict=True) if s in key}
    needs: dict[int, list[int]] = defaultdict(list)
    for span, needed in db.execute("SELECT span_id, needs_id FROM dependency_row"):
        needs[span].append(needed)
    streams = columns.streams(root)
    codes = [c for c, (_, event) in enumerate(columns.kinds) if event in _RUNNING]
    at = np.flatnonzero(np.isin(streams.kind, codes))
    runs: dict[int, list[int]] = defaultdict(list)
    for task, time in zip(
        streams.roots[streams.root[at]].tolist(), streams.time[at].tolist(), strict=True
    ):
        runs[task].append(time)
    return _Tasks(
        key=key,
        name={span: name for span, _, name in about},
        start={task: first for task, (first, _) in times.items()},
        end={task: last for task, (_, last) in times.items()},
        runs=runs,
        needs=needs,
    )
