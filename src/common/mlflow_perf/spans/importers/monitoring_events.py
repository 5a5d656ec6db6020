"""When what happened to the tasks and tries of a monitoring database.

May import spans.bulk, spans.store, spans.importers.monitoring_rows and monitoring_sql.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from datetime import datetime

import numpy as np

from mlflow_perf.spans.database.bulk import Ints
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.monitoring_rows import (
    NO_TIME,
    RUN_BITS,
    TRY_BITS,
    Numbers,
    Part,
    parts,
    read_part,
    row_ranges,
    time_us,
)
from mlflow_perf.spans.importers.monitoring_sql import WORKER_STATES, Statements

__all__ = ["Clock", "state_events", "task_events"]

# A worker's clock that is off by this much is in another time zone: zones lie on quarters of an
# hour, and results do not take half of that to come back.
_QUARTER_HOUR_SEC = 900
_NEVER = (1 << 63) - 1
_STATUS = {"task_id": "int", "try_id": "int", "timestamp": "time", "task_status_name": "state"}
_MOST_STATES = 1000


class Clock:
    """Turns the local times of the runs to Unix time.

    Attributes:
        shifts: For each try how many microseconds its worker's clock is ahead of the run's.
    """

    def __init__(self, db: sqlite3.Connection, sql: Statements, tries: Numbers) -> None:
        self._db = db
        self._sql = sql
        self._tries = tries
        self.shifts = np.zeros(len(tries.key), dtype=np.int64)
        rows = db.execute("SELECT scope_id, offset_us, change, later_us FROM run ORDER BY 1")
        runs = [(scope, first, _change(since), later) for scope, first, since, later in rows]
        self._offsets = np.array(runs, dtype=np.int64).reshape(-1, 4).T

    def utc(self, scope: Ints, local: Ints) -> Ints:
        """Return Unix microseconds of local times, by the offsets of their runs."""
        scopes, first, change, later = self._offsets
        place = np.searchsorted(scopes, scope)
        ahead: Ints = np.where(local >= change[place], later[place], first[place])
        return local - ahead

    def find_other_zones(self) -> None:
        """Find the workers whose clocks are in another time zone than the submitting process."""
        starts = np.searchsorted(self._tries.key, self._offsets[0] << RUN_BITS).tolist()
        for start, stop in itertools.pairwise([*starts, len(self._tries.key)]):
            host = self._tries.host[start:stop]
            first, last = _ends_of_each(host)
            for worker in np.flatnonzero(last >= 0).tolist():
                ends = {int(first[worker]), int(last[worker])}
                delays = [
                    d for end in ends for d in self._delays(int(self._tries.key[start + end]))
                ]
                # Of a worker's first and last try: one result may be late, but not both.
                zones = round(-min(delays, key=abs, default=0.0) / _QUARTER_HOUR_SEC)
                if zones and worker:
                    shift = zones * _QUARTER_HOUR_SEC * 1_000_000
                    self.shifts[start:stop][host == worker] = shift
                    self._sql.changes = True

    def _delays(self, key: int) -> list[float]:
        """Return how long after a try's end, by the worker's clock, its result was back."""
        run, inside = divmod(key, 1 << RUN_BITS)
        task, attempt = divmod(inside, 1 << TRY_BITS)
        which = {"scope": run, "task": task, "attempt": attempt}
        rows = self._db.execute(self._sql.text("worker_delay"), which).fetchall()
        return [_seconds_between(ended, returned) for ended, returned in rows]


def task_events(store: Store, sql: Statements, tasks: Numbers, clock: Clock) -> Iterator[Ints]:
    """Yield when each task was invoked, and when it returned: span, time, type."""
    ends = {"task_time_invoked": "invoked", "task_time_returned": "returned"}
    known = {column: "time" for column in ends if column in sql.columns["task"]}
    unread = 0
    for part in parts(store.db, sql, "task", {"task_id": "int", **known}):
        place = tasks.place((part.scope << RUN_BITS) + part.ints["task_id"])
        for column, local in part.times.items():
            good = (place >= 0) & (local != NO_TIME)
            unread += int((~good).sum()) if column == "task_time_invoked" else 0
            time = clock.utc(part.scope[good], local[good])
            kind = np.full(len(time), store.string(ends[column]))
            yield np.stack([tasks.span[place[good]], time, kind])
    if unread:
        store.not_read("task row without a time of invocation", unread)


def state_events(store: Store, sql: Statements, tries: Numbers, clock: Clock) -> Iterator[Ints]:
    """Yield when each try came into which state: span, time, type."""
    (missing,) = store.db.execute("SELECT count(*) FROM source.status").fetchone()
    for rows in row_ranges(store.db, "status"):
        part = read_part(store.db, sql, "status", _STATUS, rows=rows)
        if (part.state < 0).any():
            names = store.db.execute(sql.text("states"), rows).fetchall()
            found = {s: store.string(s) for (name,) in names if "\0" not in (s := str(name))}
            sql.states = dict(list((sql.states | found).items())[:_MOST_STATES])
            part = read_part(store.db, sql, "status", _STATUS, rows=rows)
        events = _states(part, sql, tries, clock)
        missing -= events.shape[1]
        yield events
    if missing:
        store.not_read("status row whose try, state or time is missing", missing)


def _states(part: Part, sql: Statements, tries: Numbers, clock: Clock) -> Ints:
    """Return the states of some rows as events."""
    kinds = np.array(list(sql.states.values()))
    of_worker = np.array([state in WORKER_STATES for state in sql.states])
    task = (part.scope << RUN_BITS) + (part.ints["task_id"] << TRY_BITS)
    place = tries.place(task + part.ints["try_id"])
    good = (place >= 0) & (part.times["timestamp"] != NO_TIME) & (part.state >= 0)
    place, state = place[good], part.state[good]
    time = clock.utc(part.scope[good], part.times["timestamp"][good])
    time -= np.where(of_worker[state], clock.shifts[place], 0)
    return np.stack([tries.span[place], time, kinds[state]])


def _ends_of_each(values: Ints) -> tuple[Ints, Ints]:
    """Return where each number, as an index, stands first and last among some; -1 where nowhere.

    Of what is stored twice in the same place numpy keeps the last.
    """
    first, last = (np.full(int(values.max(initial=-1)) + 1, -1) for _ in range(2))
    places = np.arange(len(values))
    last[values] = places
    first[values[::-1]] = places[::-1]
    return first, last


def _change(since: str) -> int:
    """Return the local time in microseconds from which a run has another offset."""
    return int(time_us(f"{since[:19]}.000000")[0]) if since else _NEVER


def _seconds_between(start: str, end: str) -> float:
    """Return how long it is between two local times; nothing where one is no time."""
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    except (TypeError, ValueError):
        return 0.0
