"""Parsl's `monitoring.db`: workflows, tasks, tries and their states, blocks, nodes, resources.

The user's file is attached read-only. Large tables pass through arrays (`monitoring_source`), the
others through the statements of `monitoring.sql`.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database import bulk
from mlflow_perf.spans.database.bulk import EventSorter, Ints
from mlflow_perf.spans.database.schema import make_source_uri
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.base import SQLITE_MAGIC, list_tables
from mlflow_perf.spans.importers.local_time import NO_TIME
from mlflow_perf.spans.importers.monitoring_source import (
    RUN_BITS,
    STATES,
    TRY_BITS,
    Clock,
    MonitoringSource,
    SpanIndex,
    add_runs,
)

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
_STATUS = {"task_id": "int", "try_id": "int", "timestamp": "time", "task_status_name": "state"}
# The worker writes these states, in its own time zone; the submitting process writes the others.
_WORKER_STATES = ("running", "running_ended")
_MAX_STATES = 1000
_INDEX = (
    "SELECT group_concat(key), group_concat(id), group_concat({host})"
    " FROM (SELECT key, id, host_id FROM span_row WHERE type_id = ? AND scope_id = ? AND key > ?"
    " AND typeof(key) = 'integer' ORDER BY key LIMIT 100000)"
)


class MonitoringImporter:
    """Imports every run of a monitoring database in one pass."""

    name = "parsl-monitoring"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Return whether it is an SQLite file with Parsl's tables."""
        if not head.startswith(SQLITE_MAGIC):
            return False
        tables = list_tables(source)
        return {"workflow", "task"} <= tables or {"try", "status"} <= tables

    def load(self, source: Path, store: Store) -> None:
        """Import workflows, tasks, tries, states, dependencies, blocks, nodes and resources.

        Raises:
            SpansError: Tables or columns are missing.
            sqlite3.Error: The file is damaged or locked.
        """
        store.db.execute("ATTACH ? AS source", (make_source_uri(source),))
        # Else SQLite indexes a table of a million rows by their single run.
        store.db.execute("PRAGMA automatic_index = OFF")
        _Load(source, store).run()


class _Load:
    """One pass over one attached database."""

    def __init__(self, path: Path, store: Store) -> None:
        columns = _read_columns(store.db, path)
        states = {state: store.string(state) for state in STATES}
        self._store = store
        self._source = MonitoringSource(store.db, columns, states)
        self._types = {
            kind: store.string(f"parsl.monitoring.{kind}")
            for kind in ("workflow", "task", "try", "block", "node")
        }
        for table in ("run", "try_number", "sample"):
            store.db.execute(f"DROP TABLE IF EXISTS temp.{table}")
        add_runs(path, self._source, store)

    def run(self) -> None:
        store, source = self._store, self._source
        before = store.count_spans()
        source.execute("words")
        for number, kind in enumerate(("workflow", "task", "try")):
            store.progress(f"{kind} spans", number / 10)
            source.execute(f"{kind}_spans", {"type": self._types[kind]})
        self._workflows = self._read_index("workflow")
        self._tasks = self._read_index("task")
        self._tries = self._read_index("try")
        self._add_relations()
        store.progress("events", 0.4)
        self._clock = Clock(source, self._tries)
        if {"hostname", "task_try_time_returned"} <= source.columns["try"]:
            self._clock.find_other_zones()
        with self._make_sorter() as events:
            workflow = {name: store.string(name) for name in ("began", "completed")}
            self._add_events(events, "workflow_events", type=self._types["workflow"], **workflow)
            self._add_task_events(events)
            self._add_states(events)
            for wording, count in source.execute("unread").fetchall():
                if count:
                    store.not_read(wording, count)
            # Lets statements look up the number of a try, and its worker's shift.
            source.execute("try_number_table")
            if source.has_rows("block") or source.has_rows("resource"):
                rows = np.stack([self._tries.key, self._tries.span, self._clock.shifts])
                bulk.insert_columns(store.db, "temp.try_number", rows)
            self._add_places(events)
            store.progress("events", 0.6)
            for rows in events.ranges():
                store.add_event_table(rows)
        has_samples = source.columns.get("resource", set()) >= _RESOURCE
        if has_samples and "hostname" in source.columns["try"]:
            store.progress("resources", 0.9)
            source.execute("resource_table")
            source.execute("resource_metrics", {m: store.string(m) for m in _METRICS})
        store.spans += store.count_spans() - before

    def _read_index(self, kind: str) -> SpanIndex:
        """Return the numbers of the spans of a type in the runs of this database."""
        db = self._store.db
        found: list[Ints] = []
        # Only tries are looked up by host; for the others the index of the table is enough.
        query = _INDEX.format(host="coalesce(host_id, 0)" if kind == "try" else "0")
        for (scope,) in db.execute("SELECT scope_id FROM temp.run ORDER BY 1").fetchall():
            last = -1
            while (texts := db.execute(query, (self._types[kind], scope, last)).fetchone())[0]:
                key, span, host = (bulk.parse_ints(text) for text in texts)
                last = int(key[-1])
                found.append(np.stack([(scope << RUN_BITS) + key, span, host]))
        return SpanIndex(*bulk.concatenate(found))

    def _add_relations(self) -> None:
        """Store the parts of workflows and of tasks, and which task needs another."""
        for part in self._tasks.parts():
            run, task = np.divmod(part.key, 1 << RUN_BITS)
            self._add_subspans(self._workflows, run << RUN_BITS, part, task)
        for part in self._tries.parts():
            inside, attempt = np.divmod(part.key, 1 << TRY_BITS)
            run, task = np.divmod(inside, 1 << (RUN_BITS - TRY_BITS))
            self._add_subspans(self._tasks, (run << RUN_BITS) + task, part, attempt)
        if "task_depends" not in self._source.columns["task"]:
            return
        for low, high in self._source.row_ranges("task"):
            texts = self._source.execute("dependencies", {"low": low, "high": high}).fetchone()
            scope, task, count, needs = (bulk.parse_ints(text) for text in texts)
            scope, task = np.repeat(scope << RUN_BITS, count), np.repeat(task, count)
            left, right = self._tasks.find(scope + task), self._tasks.find(scope + needs)
            known = (left >= 0) & (right >= 0)
            pairs = np.stack([self._tasks.span[left[known]], self._tasks.span[right[known]]])
            bulk.insert_columns(self._store.db, "dependency_row", bulk.sort(pairs))

    def _add_subspans(self, upper: SpanIndex, upper_key: Ints, lower: SpanIndex, key: Ints) -> None:
        place = upper.find(upper_key)
        known = place >= 0
        rows = np.stack([upper.span[place[known]], lower.span[known], key[known]])
        bulk.insert_columns(self._store.db, "subspan_row", bulk.sort(rows))

    def _make_sorter(self) -> EventSorter:
        """Return a sorter for the events; many events wait in a file beside the database."""
        spans = np.concatenate([self._workflows.span, self._tasks.span, self._tries.span])
        ends = (int(spans.min()), int(spans.max())) if len(spans) else (0, 0)
        db = self._store.db
        (states,) = db.execute("SELECT count(*) FROM source.status").fetchone()
        (tasks,) = db.execute("SELECT count(*) FROM source.task").fetchone()
        main = "SELECT file FROM pragma_database_list WHERE name = 'main'"
        (file,) = db.execute(main).fetchone()
        return EventSorter(ends, states + 2 * tasks, Path(file).parent)

    def _add_events(self, events: EventSorter, name: str, **parameters: int) -> None:
        """Add the events that a statement gives: number of the span, time, number of the type."""
        rows = self._source.execute(name, parameters).fetchall()
        good = [row for row in rows if row[1] is not None]
        if good:
            events.add(np.array(good, dtype=np.int64).T.copy())

    def _add_task_events(self, events: EventSorter) -> None:
        """Add the times at which tasks were invoked and returned."""
        source, tasks = self._source, self._tasks
        ends = {"task_time_invoked": "invoked", "task_time_returned": "returned"}
        wanted = {"task_id": "int"}
        wanted |= {column: "time" for column in ends if column in source.columns["task"]}
        unread = 0
        for rows in source.row_ranges("task"):
            part = source.read_part("task", wanted, rows)
            place = tasks.find((part.scope << RUN_BITS) + part.ints["task_id"])
            for column, local in part.times.items():
                good = (place >= 0) & (local != NO_TIME)
                unread += int((~good).sum()) if column == "task_time_invoked" else 0
                time = self._clock.to_utc(part.scope[good], local[good])
                kind = np.full(len(time), self._store.string(ends[column]))
                events.add(np.stack([tasks.span[place[good]], time, kind]))
        if unread:
            self._store.not_read("task row without a time of invocation", unread)

    def _add_states(self, events: EventSorter) -> None:
        """Add the times at which tries entered their states."""
        store, source, tries = self._store, self._source, self._tries
        (missing,) = store.db.execute("SELECT count(*) FROM source.status").fetchone()
        for rows in source.row_ranges("status"):
            part = source.read_part("status", _STATUS, rows)
            if (part.state < 0).any():
                names = [str(name) for (name,) in source.execute("states", rows).fetchall()]
                known = source.states | {s: store.string(s) for s in names if "\0" not in s}
                source.states = dict(list(known.items())[:_MAX_STATES])
                part = source.read_part("status", _STATUS, rows)
            numbers = np.array(list(source.states.values()))
            of_worker = np.array([state in _WORKER_STATES for state in source.states])
            local = part.times["timestamp"]
            task = (part.scope << RUN_BITS) + (part.ints["task_id"] << TRY_BITS)
            place = tries.find(task + part.ints["try_id"])
            good = (place >= 0) & (local != NO_TIME) & (part.state >= 0)
            place, state = place[good], part.state[good]
            time = self._clock.to_utc(part.scope[good], local[good])
            time -= np.where(of_worker[state], self._clock.shifts[place], 0)
            missing -= len(time)
            events.add(np.stack([tries.span[place], time, numbers[state]]))
        if missing:
            store.not_read("status row whose try, state or time is missing", missing)

    def _add_places(self, events: EventSorter) -> None:
        """Add blocks and nodes: their spans, their events, and what is part of them."""
        store, source = self._store, self._source
        store.progress("blocks and nodes", 0.5)
        workflow, block, node = (self._types[k] for k in ("workflow", "block", "node"))
        if source.columns.get("block", set()) >= _BLOCK:
            source.execute("block_words")
            source.execute("block_spans", {"type": block})
            self._add_events(events, "block_events", type=block)
            source.execute("block_subspans", {"workflow": workflow, "type": block})
            has_blocks = {"task_executor", "block_id"} <= source.columns["try"]
            if has_blocks and source.has_rows("block"):
                source.execute("try_in_block", {"type": block})
        if source.columns.get("node", set()) >= _NODE:
            source.execute("node_words")
            source.execute("node_spans", {"type": node})
            active, inactive = store.string("active"), store.string("inactive")
            self._add_events(events, "node_events", type=node, active=active, inactive=inactive)
            types = {"type": node, "workflow": workflow, "block": block}
            source.execute("node_subspans", types)


def _read_columns(db: sqlite3.Connection, source: Path) -> dict[str, set[str]]:
    """Return the columns of each table.

    Raises:
        SpansError: A table or a column is missing.
    """
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
