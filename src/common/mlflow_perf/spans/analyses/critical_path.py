"""The chain of tasks that determined when the workflow ended."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.event_arrays import DEFAULT_ROOT, Row, load_columns
from mlflow_perf.spans.database.schema import Database, open_for_reading

# The events, in any of the sources, from which a task's code runs.
_RUNNING = ("running", "worker_received_task", "RUNNING")
_TASKS = (
    "SELECT s.id, s.key, n.text FROM span_row s LEFT JOIN string n ON n.id = s.name_id"
    " JOIN string t ON t.id = s.type_id JOIN scope c ON c.id = s.scope_id"
    " WHERE t.text = ? AND (? IS NULL OR c.name LIKE '%' || ? || '%')"
)


def critical_path(db: Database, root: str = DEFAULT_ROOT, *, run: str | None = None) -> list[Row]:
    """Return the task that ended last, before it the last task it waited for, and so on.

    Args:
        db: The database; its dependencies come from Parsl (`task_depends` or the log).
        root: The type of the tasks.
        run: The run's id or a part of it; default: the run whose task ended last.

    Returns:
        Rows in time order: `task`, `name`, `released_s` (Unix time at which it could start, as all
        it needed had ended), `running_s` (at which it did start; None if no source has it),
        `ended_s`, `waited_s` and `ran_s`.

    Raises:
        SpansError: There are no such tasks, or none has both a first and a last event.
    """
    with open_for_reading(db) as connection:
        columns = load_columns(connection)
        tasks = connection.execute(_TASKS, (root, run, run))
        about = {span: (key, name) for span, key, name in tasks}
        needs: dict[int, list[int]] = defaultdict(list)
        for span, needed in connection.execute("SELECT span_id, needs_id FROM dependency_row"):
            needs[span].append(needed)
    timed = list(zip(*(array.tolist() for array in columns.timed_spans()), strict=True))
    start = {span: first for span, first, _ in timed if span in about}
    end = {span: last for span, _, last in timed if span in about}
    if not end:
        where = f" of the run {run!r}" if run else ""
        raise SpansError(f"There are no spans of type {root!r}{where} that have ended.")
    streams = columns.streams(root)
    codes = [code for code, (_, event) in enumerate(streams.kinds) if event in _RUNNING]
    at = np.isin(streams.kind, codes)
    runs: dict[int, list[int]] = defaultdict(list)
    owners = streams.roots[streams.root[at]].tolist()
    for task, time in zip(owners, streams.time[at].tolist(), strict=True):
        runs[task].append(time)
    rows: list[Row] = []
    seen: set[int] = set()
    last: int | None = max(end, key=lambda task: end[task])
    while last is not None:
        seen.add(last)
        ended = end[last]
        # A task cannot have waited for one that ended later, whatever the database says.
        needed = [n for n in needs[last] if n in end and end[n] <= ended]
        released = max([start[last], *(end[n] for n in needed)])
        # Only the last try counts: the time of earlier, failed tries is waiting too.
        running = max((t for t in runs[last] if released <= t <= ended), default=None)
        began = released if running is None else running
        row = dict(zip(("task", "name"), about[last], strict=True)) | {
            "released_s": released / 1e6,
            "running_s": None if running is None else running / 1e6,
            "ended_s": ended / 1e6,
            "waited_s": (began - released) / 1e6,
            "ran_s": (ended - began) / 1e6,
        }
        rows.append(row)
        # Each task once: dependencies of a damaged database may form a cycle.
        last = max((n for n in needed if n not in seen), key=lambda task: end[task], default=None)
    return rows[::-1]
