"""Parsl's `monitoring.db`: workflows, tasks, tries and their states, blocks, nodes, resources.

May import errors, spans.bulk, spans.sorting, spans.schema, spans.store, spans.localtime,
spans.importers. Reads the user's file attached read-only: what is large as arrays
(`monitoring_rows`), the rest with the statements of `monitoring.sql`.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database import bulk
from mlflow_perf.spans.database.bulk import Ints
from mlflow_perf.spans.database.schema import source_uri
from mlflow_perf.spans.database.sorting import EventSorter
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.base import tables_of
from mlflow_perf.spans.importers.local_time import Offset, machine_offsets, offsets_of_run
from mlflow_perf.spans.importers.monitoring_events import Clock, state_events, task_events
from mlflow_perf.spans.importers.monitoring_rows import RUN_BITS, TRY_BITS, Numbers, row_ranges
from mlflow_perf.spans.importers.monitoring_sql import STATES, Statements

__all__ = ["MonitoringImporter"]

_NEEDED = {
    "workflow": {"run_id", "time_began", "time_completed"},
    "task": {"run_id", "task_id", "task_func_name", "task_time_invoked"},
    "try": {"run_id", "task_id", "try_id"},
    "status": {"run_id", "task_id", "try_id", "task_status_name", "timestamp"},
}
_RESOURCE = {
    "try_id", "task_id", "run_id", "timestamp", "psutil_process_pid", "psutil_process_time_user",
    "psutil_process_time_system", "psutil_process_disk_read", "psutil_process_disk_write",
    "psutil_process_memory_resident", "psutil_process_memory_percent",
}  # fmt: skip
_NODE = {
    "run_id", "uid", "hostname", "block_id", "cpu_count", "total_memory", "active", "timestamp",
    "worker_count",
}  # fmt: skip
_BLOCK = {"run_id", "executor_label", "block_id", "job_id", "timestamp", "status"}
_METRICS = ("cpu_s", "memory_mb", "memory_percent", "disk_read_mb", "disk_write_mb")
_NUMBERS = (
    "SELECT group_concat(key), group_concat(id), group_concat({host})"
    " FROM (SELECT key, id, host_id FROM span_row WHERE type_id = ? AND scope_id = ? AND key > ?"
    " AND typeof(key) = 'integer' ORDER BY key LIMIT ?)"
)
_PART_ROWS = 100_000


class MonitoringImporter:
    """Imports every run of a monitoring database in one pass."""

    name = "parsl-monitoring"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Say whether it is an SQLite file with Parsl's tables."""
        if not head.startswith(b"SQLite format 3\0"):
            return False
        tables = tables_of(source)
        return {"workflow", "task"} <= tables or {"try", "status"} <= tables

    def load(self, source: Path, store: Store) -> None:
        """Import workflows, tasks, tries, states, dependencies, blocks, nodes and resources.

        Raises:
            SpansError: Tables or columns are missing, or the file is locked.
        """
        try:
            store.db.execute("ATTACH ? AS source", (source_uri(source),))
            # Else SQLite indexes a table of a million rows by the one run that they are all of.
            store.db.execute("PRAGMA automatic_index = OFF")
            _Load(source, store).run()
        except sqlite3.Error as error:
            raise SpansError(
                f"{source} cannot be read: {error}. If it is being written, try again."
            ) from error


class _Load:
    """One pass over one attached database."""

    def __init__(self, source: Path, store: Store) -> None:
        self._source = source
        self._store = store
        self._columns = _columns(store.db, source)
        self._sql = Statements(self._columns, {state: store.string(state) for state in STATES})
        self._types = {
            word: store.string(f"parsl.monitoring.{word}")
            for word in ("workflow", "task", "try", "block", "node")
        }

    def run(self) -> None:
        for table in ("run", "try_number", "sample"):
            self._store.db.execute(f"DROP TABLE IF EXISTS temp.{table}")
        before = self._store.count_spans()
        self._fill_runs()
        self._spans()
        self._relations()
        with self._sorter() as events:
            self._events(events)
            self._number_tries()
            self._places(events)
            self._store.progress("events", 0.6)
            for rows in events.ranges():
                self._store.add_event_table(rows)
        self._resources()
        self._store.spans += self._store.count_spans() - before

    def _fill_runs(self) -> None:
        self._execute("run_table")
        rundir = "rundir" if "rundir" in self._columns["workflow"] else "''"
        rows = self._store.db.execute(f"SELECT run_id, time_began, {rundir} FROM source.workflow")  # noqa: S608 - one of two words of ours
        runs = [(str(run), str(began), str(folder or "")) for run, began, folder in rows]
        shown = {run[1]: found for run in runs if (found := self._shown(*run))}
        for run_id, began, _ in runs:
            self._add_run(run_id, shown.get(began) or self._supposed(began, shown))

    def _add_run(self, run_id: str, offsets: list[Offset]) -> None:
        first, *later = offsets
        change = later[0] if later else Offset("", first.seconds)
        self._sql.runs += 1
        self._sql.changes |= bool(later)
        self._store.db.execute(
            "INSERT INTO temp.run VALUES (?, ?, ?, ?, ?)",
            (
                run_id,
                self._store.scope(f"parsl:{run_id}"),
                first.seconds * 1_000_000,
                change.since,
                change.seconds * 1_000_000,
            ),
        )

    def _shown(self, run_id: str, began: str, rundir: str) -> list[Offset]:
        """Return the offsets that the logs of a run show; none where there are none."""
        # Beside the database first: the recorded path is that of the machine that ran it.
        name = rundir.replace("\\", "/").rstrip("/").rpartition("/")[2]
        folders = (self._source.parent / name, Path(rundir)) if name else ()
        return next(filter(None, (offsets_of_run(f, run_id, began) for f in folders)), [])

    def _supposed(self, began: str, shown: dict[str, list[Offset]]) -> list[Offset]:
        """Return the offset of the last run before whose logs show it, else this machine's own."""
        if shown:
            before = max((b for b in shown if b <= began), default=min(shown))
            return shown[before][-1:]
        found = machine_offsets(began[:19])
        if not found:
            self._store.not_read("workflow row whose time_began is not a time")
        return found or [Offset("", 0)]

    def _spans(self) -> None:
        self._execute("words")
        for number, kind in enumerate(("workflow", "task", "try")):
            self._store.progress(f"{kind} spans", number / 10)
            self._execute(f"{kind}_spans", type=self._types[kind])
        self._workflows, self._tasks, self._tries = (
            self._numbers(kind) for kind in ("workflow", "task", "try")
        )

    def _numbers(self, kind: str) -> Numbers:
        """Return the numbers of the spans of a type in the runs of this database."""
        found: list[Ints] = []
        # Only tries are looked up by host: for the others the index alone tells all.
        host = "coalesce(host_id, 0)" if kind == "try" else "0"
        for (scope,) in self._store.db.execute("SELECT scope_id FROM temp.run ORDER BY 1"):
            last = -1
            while rows := self._some_numbers(self._types[kind], scope, last, host):
                last = int(rows[0][-1])
                found.append(np.stack([(scope << RUN_BITS) + rows[0], *rows[1:]]))
        return Numbers(*bulk.concatenate(found))

    def _some_numbers(self, kind: int, scope: int, last: int, host: str) -> list[Ints]:
        """Return key, span and host of the next spans behind a key; nothing where there is none."""
        query = _NUMBERS.format(host=host)
        texts = self._store.db.execute(query, (kind, scope, last, _PART_ROWS)).fetchone()
        return [bulk.parse_ints(text) for text in texts] if texts[0] else []

    def _sorter(self) -> EventSorter:
        """Return what sorts the events; they wait beside the database when they are many."""
        spans = [n.span for n in (self._workflows, self._tasks, self._tries) if len(n.span)]
        ends = (
            min((int(s.min()) for s in spans), default=0),
            max((int(s.max()) for s in spans), default=0),
        )
        counts = (
            "SELECT (SELECT count(*) FROM source.status), 2 * (SELECT count(*) FROM source.task)"
        )
        events = sum(self._store.db.execute(counts).fetchone())
        (file,) = self._store.db.execute(
            "SELECT file FROM pragma_database_list WHERE name = 'main'"
        ).fetchone()
        return EventSorter(ends, events, Path(file).parent)

    def _relations(self) -> None:
        tasks, tries = self._tasks, self._tries
        for part in tasks.parts(_PART_ROWS):
            run, key = np.divmod(part.key, 1 << RUN_BITS)
            self._add_subspans(self._workflows, run << RUN_BITS, part, key)
        for part in tries.parts(_PART_ROWS):
            task, attempt = np.divmod(part.key, 1 << TRY_BITS)
            run, task = np.divmod(task, 1 << (RUN_BITS - TRY_BITS))
            self._add_subspans(tasks, (run << RUN_BITS) + task, part, attempt)
        if "task_depends" in self._columns["task"]:
            for low, high in row_ranges(self._store.db, "task"):
                self._depend(low=low, high=high)

    def _add_subspans(self, upper: Numbers, upper_key: Ints, lower: Numbers, key: Ints) -> None:
        place = upper.place(upper_key)
        known = place >= 0
        rows = np.stack([upper.span[place[known]], lower.span[known], key[known]])
        bulk.insert_columns(self._store.db, "subspan_row", bulk.sort(rows))

    def _depend(self, **rows: int) -> None:
        texts = self._store.db.execute(self._sql.text("dependencies"), rows).fetchone()
        scope, task, count, needs = (bulk.parse_ints(text) for text in texts)
        scope, task = np.repeat(scope << RUN_BITS, count), np.repeat(task, count)
        left, right = self._tasks.place(scope + task), self._tasks.place(scope + needs)
        known = (left >= 0) & (right >= 0)
        pairs = np.stack([self._tasks.span[left[known]], self._tasks.span[right[known]]])
        bulk.insert_columns(self._store.db, "dependency_row", bulk.sort(pairs))

    def _events(self, events: EventSorter) -> None:
        self._store.progress("events", 0.4)
        clock = Clock(self._store.db, self._sql, self._tries)
        if {"hostname", "task_try_time_returned"} <= self._columns["try"]:
            clock.find_other_zones()
        self._shifts = clock.shifts
        words = {word: self._store.string(word) for word in ("began", "completed")}
        self._add_events(events, "workflow_events", type=self._types["workflow"], **words)
        for rows in task_events(self._store, self._sql, self._tasks, clock):
            events.add(rows)
        for rows in state_events(self._store, self._sql, self._tries, clock):
            events.add(rows)
        for wording, count in self._store.db.execute(self._sql.text("unread")).fetchall():
            if count:
                self._store.not_read(wording, count)

    def _add_events(self, events: EventSorter, name: str, **parameters: int) -> None:
        """Take the events that a query gives: the span's number, the time, the type's number."""
        rows = self._store.db.execute(self._sql.text(name), parameters).fetchall()
        good = [row for row in rows if row[1] is not None]
        if good:
            events.add(np.array(good, dtype=np.int64).T.copy())

    def _number_tries(self) -> None:
        """Let statements find the number of a try, and how far its worker's clock is ahead."""
        self._execute("try_number_table")
        if not any(self._any_row(table) for table in ("block", "resource")):
            return
        rows = np.stack([self._tries.key, self._tries.span, self._shifts])
        bulk.insert_columns(self._store.db, "temp.try_number", rows)

    def _places(self, events: EventSorter) -> None:
        self._store.progress("blocks and nodes", 0.5)
        workflow, block, node = (self._types[k] for k in ("workflow", "block", "node"))
        if self._columns.get("block", set()) >= _BLOCK:
            self._execute("block_words")
            self._execute("block_spans", type=block)
            self._add_events(events, "block_events", type=block)
            self._execute("block_subspans", workflow=workflow, type=block)
            blocks = {"task_executor", "block_id"} <= self._columns["try"]
            if blocks and self._any_row("block"):
                self._execute("try_in_block", type=block)
        if self._columns.get("node", set()) >= _NODE:
            self._execute("node_words")
            self._execute("node_spans", type=node)
            active, inactive = self._store.string("active"), self._store.string("inactive")
            self._add_events(events, "node_events", type=node, active=active, inactive=inactive)
            self._execute("node_subspans", type=node, workflow=workflow, block=block)

    def _resources(self) -> None:
        if not self._columns.get("resource", set()) >= _RESOURCE:
            return
        if "hostname" not in self._columns["try"]:
            return
        self._store.progress("resources", 0.9)
        self._execute("resource_table")
        self._execute("resource_metrics", **{m: self._store.string(m) for m in _METRICS})

    def _execute(self, name: str, **parameters: int | str) -> int:
        return self._store.execute(self._sql.text(name), parameters)

    def _any_row(self, table: str) -> bool:
        query = f"SELECT 1 FROM source.{table}"  # noqa: S608 - names of ours
        return table in self._columns and self._store.db.execute(query).fetchone() is not None


def _columns(db: sqlite3.Connection, source: Path) -> dict[str, set[str]]:
    """Return the columns of each table; complain about what is needed and missing."""
    query = "SELECT name FROM pragma_table_info(?, 'source')"
    tables = db.execute("SELECT name FROM source.sqlite_master WHERE type = 'table'").fetchall()
    found = {table: {c for (c,) in db.execute(query, (table,))} for (table,) in tables}
    for table, needed in _NEEDED.items():
        if table not in found:
            raise SpansError(
                f"{source} has no table `{table}`: it is not a whole Parsl monitoring database."
            )
        missing = sorted(needed - found[table])
        if missing:
            raise SpansError(
                f"{source} has no column {', '.join(missing)} in its table `{table}`: its Parsl "
                "is older or newer than mlflow-perf knows."
            )
    return found
