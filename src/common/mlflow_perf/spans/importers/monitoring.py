"""Parsl's `monitoring.db`: workflows, tasks, tries and their states, blocks, nodes, resources.

May import errors, spans.schema, spans.store, spans.localtime, spans.importers. Reads with the
statements of `monitoring.sql` only, from the user's file attached read-only: a million rows take
seconds where a loop takes minutes.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from datetime import datetime
from pathlib import Path

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.importers.base import tables_of
from mlflow_perf.spans.importers.monitoring_sql import STATES, Statements
from mlflow_perf.spans.localtime import Offset, machine_offsets, offsets_of_run
from mlflow_perf.spans.schema import source_uri
from mlflow_perf.spans.store import Store

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
# A worker's clock that is off by this much is in another time zone: zones lie on quarters of an
# hour, and results do not take half of that to come back.
_QUARTER_HOUR_SEC = 900


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
        for table in ("run", "task_number", "try_number", "sample"):
            self._store.db.execute(f"DROP TABLE IF EXISTS temp.{table}")
        before = self._store.count_spans()
        self._fill_runs()
        self._spans()
        self._shifts()
        self._events()
        self._places()
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
        for kind in ("task", "try"):
            self._execute(f"{kind}_number_table")
            self._execute(f"{kind}_numbers", type=self._types[kind])
        self._execute("task_subspans", workflow=self._types["workflow"], task=self._types["task"])
        self._execute("try_subspans")
        if "task_depends" in self._columns["task"]:
            self._execute("single_dependencies")
            self._execute("dependencies")

    def _shifts(self) -> None:
        """Find workers whose clocks are in another time zone than the submitting process."""
        if not {"hostname", "task_try_time_returned"} <= self._columns["try"]:
            return
        tries = self._types["try"]
        delays: dict[tuple[int, str], list[float]] = defaultdict(list)
        rows = self._store.db.execute(self._sql.text("worker_delays"), {"type": tries})
        for scope, host, ended, returned in rows.fetchall():
            delays[scope, host].append(_seconds_between(ended, returned))
        for (scope, host), values in delays.items():
            # Of a worker's first and last try: one result may be late, but not both.
            zones = round(-min(values, key=abs) / _QUARTER_HOUR_SEC)
            if zones:
                shift = zones * _QUARTER_HOUR_SEC * 1_000_000
                self._execute("shift", shift=shift, type=tries, scope=scope, host=host)
                self._sql.changes = True

    def _events(self) -> None:
        words = ("began", "completed", "invoked", "returned")
        types = {word: self._store.string(word) for word in words}
        self._store.progress("events", 0.4)
        stored = self._execute(
            "workflow_events",
            type=self._types["workflow"],
            began=types["began"],
            completed=types["completed"],
        )
        stored += self._execute("task_events", invoked=types["invoked"], returned=types["returned"])
        self._store.progress("events", 0.5)
        states = self._execute("status_events")
        (rows,) = self._store.db.execute("SELECT count(*) FROM source.status").fetchone()
        if states < rows:
            found = [str(s) for (s,) in self._store.db.execute(self._sql.text("states")).fetchall()]
            self._sql.states = {s: self._store.string(s) for s in found if "\0" not in s}
            states += self._execute("status_events")
            self._count_unread()
        self._store.events += stored + states

    def _count_unread(self) -> None:
        for wording, count in self._store.db.execute(self._sql.text("unread")).fetchall():
            if count:
                self._store.not_read(wording, count)

    def _places(self) -> None:
        self._store.progress("blocks and nodes", 0.8)
        workflow, block, node = (self._types[k] for k in ("workflow", "block", "node"))
        if self._columns.get("block", set()) >= _BLOCK:
            self._execute("block_words")
            self._execute("block_spans", type=block)
            self._store.events += self._execute("block_events", type=block)
            self._execute("block_subspans", workflow=workflow, type=block)
            blocks = {"task_executor", "block_id"} <= self._columns["try"]
            if blocks and self._any("SELECT 1 FROM source.block"):
                self._execute("try_in_block", type=block)
        if self._columns.get("node", set()) >= _NODE:
            self._execute("node_words")
            self._execute("node_spans", type=node)
            active, inactive = self._store.string("active"), self._store.string("inactive")
            self._store.events += self._execute(
                "node_events", type=node, active=active, inactive=inactive
            )
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

    def _any(self, query: str) -> bool:
        return self._store.db.execute(query).fetchone() is not None


def _seconds_between(start: str, end: str) -> float:
    """Return how long it is between two local times; nothing where one is no time."""
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    except (TypeError, ValueError):
        return 0.0


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
