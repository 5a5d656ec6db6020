"""An attached monitoring database of Parsl: its statements, clocks, and large tables as arrays."""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from mlflow_perf.spans.database.bulk import Ints, parse_ints
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.base import read_statements
from mlflow_perf.spans.importers.local_time import (
    NO_TIME,
    Offset,
    assume_offsets,
    find_run_offsets,
    parse_times,
)

RUN_BITS, TRY_BITS = 44, 16
"""A span's key in an index: the run's number, then 44 bits; the last 16 are the number of a try."""

# Parsl's states; other states are read from the database only if these leave rows over.
STATES = (
    "pending", "launched", "running", "running_ended", "joining", "exec_done", "memo_done",
    "failed", "dep_fail", "fail_retryable", "unsched", "exec_retry",
)  # fmt: skip
# In joined texts this character means the first state, the next character the second.
_FIRST_STATE = 0x100
_ROWS = 100_000
_NO_TIME = "?" * 26
# The SQL that reads a value of each kind, with three levels of care: as Parsl writes it; also a
# time without a fraction, which is rare; any value, and a missing one.
_ANY_TIME = (
    "coalesce(substr(substr({0}, 1, 19) || '.' || substr(substr({0}, 21) || '000000', 1, 6)"
    f" || '{_NO_TIME}', 1, 26), '{_NO_TIME}')"
)
_SHAPES = {
    "int": ("{0}", "{0}", "CASE typeof({0}) WHEN 'integer' THEN {0} ELSE -1 END"),
    "time": (
        "{0}",
        "CASE length({0}) WHEN 26 THEN {0} ELSE {0} || '.000000' END",
        _ANY_TIME,
    ),
}

# The aliases of the source's tables in the statements.
_ALIASES = {"w": "workflow", "t": "task", "y": "try", "try": "try"}
_OPTIONAL = re.compile(r"@optional\((\w+)\.(\w+)\)")
_OF_RUN = re.compile(r"@of_run\(([\w.]+) (\w)\)")
_TIME = re.compile(r"@(time|sample_time)\(([\w.]+)\)")
# A worker's clock that is off by this much is in another time zone: zones lie on quarters of an
# hour, and no result takes half of that to return.
_QUARTER_HOUR_SEC = 900
_NEVER = (1 << 63) - 1


@dataclass(frozen=True)
class Part:
    """Some rows of a table.

    Attributes:
        scope: The number of each row's run.
        ints: Its whole numbers, by column.
        times: Its local times in microseconds since 1970, by column; `NO_TIME` for no time.
        state: The position of its state in `MonitoringSource.states`; -1 for an unknown state.
    """

    scope: Ints
    ints: dict[str, Ints]
    times: dict[str, Ints]
    state: Ints


@dataclass(frozen=True)
class SpanIndex:
    """The numbers of spans by their keys.

    Attributes:
        key: The run's number and the span's key in one, ascending.
        span: The number of the span.
        host: The number of its host's name; 0 if it has none.
    """

    key: Ints
    span: Ints
    host: Ints

    def find(self, keys: Ints) -> Ints:
        """Return the position of each key, -1 for a key that is not there."""
        if not len(self.key):
            return np.full(len(keys), -1)
        at = np.searchsorted(self.key, keys)
        at[at == len(self.key)] = 0
        at[self.key[at] != keys] = -1
        return at

    def parts(self) -> Iterator[SpanIndex]:
        """Yield the index in parts of 100,000 spans, to save memory."""
        for at in range(0, len(self.key), _ROWS):
            some = slice(at, at + _ROWS)
            yield SpanIndex(self.key[some], self.span[some], self.host[some])


@dataclass
class MonitoringSource:
    """One monitoring database, attached as `source`.

    Attributes:
        db: The connection; its table `temp.run` holds the runs and their offsets from UTC.
        columns: The columns of each of its tables.
        states: The number of each state's name.
        runs: How many runs it holds.
        changes: Whether the UTC offset of any run changed, or differs for any worker.
    """

    db: sqlite3.Connection
    columns: dict[str, set[str]]
    states: dict[str, int]
    runs: int = 0
    changes: bool = False

    def statement(self, name: str) -> str:
        """Return a statement of `monitoring.sql` with its placeholders filled in."""

        def fill_optional(match: re.Match[str]) -> str:
            known = match[2] in self.columns[_ALIASES[match[1]]]
            return f"{match[1]}.{match[2]}" if known else "NULL"

        def fill_of_run(match: re.Match[str]) -> str:
            # A single run is looked up once, not for each of a million rows.
            tables = [f"{match[1]} {match[2]}", "temp.run r"]
            outer, inner = reversed(tables) if self.runs == 1 else tables
            return f"{outer} CROSS JOIN {inner} ON r.run_id = {match[2]}.run_id"

        text = _OPTIONAL.sub(fill_optional, read_statements("monitoring.sql")[name])
        return _TIME.sub(self._fill_time, _OF_RUN.sub(fill_of_run, text))

    def execute(self, name: str, parameters: Any = ()) -> sqlite3.Cursor:
        """Run a statement of `monitoring.sql`."""
        return self.db.execute(self.statement(name), parameters)

    def has_rows(self, table: str) -> bool:
        """Return whether there is a table with any row."""
        query = f"SELECT 1 FROM source.{table}"  # noqa: S608 - names of ours
        return table in self.columns and self.db.execute(query).fetchone() is not None

    def row_ranges(self, table: str) -> Iterator[tuple[int, int]]:
        """Yield the first and the last row number of each part of a table."""
        # Two queries: one query with both would read the whole table.
        ends = (f"SELECT {end}(rowid) FROM source.{table}" for end in ("min", "max"))  # noqa: S608 - names of ours
        low, high = (self.db.execute(end).fetchone()[0] for end in ends)
        for start in range(low, high + 1, _ROWS) if low is not None else ():
            yield start, start + _ROWS - 1

    def read_part(self, table: str, wanted: Mapping[str, str], rows: tuple[int, int]) -> Part:
        """Read some rows of a table, without those of unknown runs.

        Args:
            table: The table's name.
            wanted: Its columns, each with its kind: `int`, `time` or `state`.
            rows: The first and the last row number.

        Raises:
            ValueError: A value cannot be read.
        """
        for care in range(3):
            query = self._join_columns(table, wanted, care)
            part = _parse_part(self.db.execute(query, rows).fetchone(), wanted)
            if part is not None and (
                care == 2 or not any((time == NO_TIME).any() for time in part.times.values())
            ):
                return part
        raise ValueError(f"rows {rows[0]} to {rows[1]} of the table {table} cannot be read")

    def _join_columns(self, table: str, wanted: Mapping[str, str], care: int) -> str:
        """Return the query that joins each column of some rows to one text.

        It gives the number of rows, the scopes of their runs (a single one if there is one run) and
        the columns: whole numbers with commas, times of 26 characters each, states of one.
        """
        names = (state.replace("'", "''") for state in self.states)
        cases = (f"WHEN '{s}' THEN '{chr(_FIRST_STATE + n)}'" for n, s in enumerate(names))
        state = f"CASE {{0}} {' '.join(cases)} ELSE '{chr(_FIRST_STATE - 1)}' END"
        columns = []
        for column, kind in wanted.items():
            value = _SHAPES.get(kind, (state,) * 3)[care].replace("{0}", f"s.{column}")
            separator = "," if kind == "int" else ""
            columns.append(f"group_concat({value}, '{separator}')")
        joined = ", ".join(columns)
        if self.runs == 1:
            # Twice as fast as the join.
            return (
                f"SELECT count(*), (SELECT scope_id FROM temp.run), {joined} FROM source.{table} s"  # noqa: S608 - names of ours
                " WHERE s.rowid BETWEEN ? AND ? AND s.run_id = (SELECT run_id FROM temp.run)"
            )
        return (
            f"SELECT count(*), group_concat(r.scope_id), {joined} FROM source.{table} s"  # noqa: S608 - names of ours
            " CROSS JOIN temp.run r ON r.run_id = s.run_id WHERE s.rowid BETWEEN ? AND ?"
        )

    def _fill_time(self, match: re.Match[str]) -> str:
        """Return the SQL for the Unix microseconds of a local time.

        `unixepoch()` rounds a fraction of .9995 up to the next second, so it gets whole seconds
        only. Parsl writes six digits of a fraction, or none if all are zero.
        """
        kind, column = match.groups()
        fraction = (
            f"CASE length({column}) WHEN 26 THEN substr({column}, 21) + 0"
            f" ELSE CAST(substr(substr({column}, 21) || '000000', 1, 6) AS INTEGER) END"
        )
        local = f"unixepoch(substr({column}, 1, 19)) * 1000000 + {fraction}"
        if not self.changes:
            return f"{local} - r.offset_us"
        changed = f"r.change <> '' AND {column} >= r.change"
        utc = f"{local} - CASE WHEN {changed} THEN r.later_us ELSE r.offset_us END"
        return f"{utc} - m.shift_us" if kind == "sample_time" else utc


def add_runs(path: Path, source: MonitoringSource, store: Store) -> None:
    """Fill the table `temp.run`: each run of the database, its scope and its offset from UTC.

    The offset is the one that the run's logs show. A run without logs takes that of the latest run
    before it whose logs show one, or else the assumed one.
    """
    source.execute("run_table")
    rundir = "rundir" if "rundir" in source.columns["workflow"] else "''"
    rows = source.db.execute(f"SELECT run_id, time_began, {rundir} FROM source.workflow")  # noqa: S608 - one of two words of ours
    runs = [(str(run), str(began), str(folder or "")) for run, began, folder in rows]
    offsets_by_time: dict[str, list[Offset]] = {}
    for run, began, folder in runs:
        # Beside the database first: the recorded path is that of the machine of the run.
        name = folder.replace("\\", "/").rstrip("/").rpartition("/")[2]
        for place in (path.parent / name, Path(folder)) if name else ():
            if found := find_run_offsets(place, run, began):
                offsets_by_time[began] = found
                break
    for run, began, _ in runs:
        offsets = offsets_by_time.get(began)
        if offsets is None and offsets_by_time:
            before = (time for time in offsets_by_time if time <= began)
            offsets = offsets_by_time[max(before, default=min(offsets_by_time))][-1:]
        if offsets is None and not (offsets := assume_offsets(began[:19], store)):
            store.not_read("workflow row whose time_began is not a time")
            offsets = [Offset("", 0)]
        first, change = offsets[0], offsets[1] if offsets[1:] else Offset("", offsets[0].seconds)
        source.runs += 1
        source.changes |= len(offsets) > 1
        scope = store.scope(f"parsl:{run}")
        seconds = (first.seconds * 1_000_000, change.since, change.seconds * 1_000_000)
        source.db.execute("INSERT INTO temp.run VALUES (?, ?, ?, ?, ?)", (run, scope, *seconds))


class Clock:
    """Turns local times to Unix time.

    Attributes:
        shifts: For each try, how many microseconds its worker's clock is ahead of the run's.
    """

    def __init__(self, source: MonitoringSource, tries: SpanIndex) -> None:
        self._source = source
        self._tries = tries
        self.shifts = np.zeros(len(tries.key), dtype=np.int64)
        runs = []
        query = "SELECT scope_id, offset_us, change, later_us FROM temp.run ORDER BY 1"
        for scope, offset, since, later in source.db.execute(query):
            change = int(parse_times(f"{since[:19]}.000000")[0]) if since else _NEVER
            runs.append((scope, offset, change, later))
        self._offsets = np.array(runs, dtype=np.int64).reshape(-1, 4).T

    def to_utc(self, scope: Ints, local: Ints) -> Ints:
        """Return Unix microseconds of local times, by the offsets of their runs."""
        scopes, offset, change, later = self._offsets
        place = np.searchsorted(scopes, scope)
        ahead: Ints = np.where(local >= change[place], later[place], offset[place])
        return local - ahead

    def find_other_zones(self) -> None:
        """Find the workers whose clocks are in another time zone than the submitting process."""
        tries = self._tries
        starts = np.searchsorted(tries.key, self._offsets[0] << RUN_BITS).tolist()
        for start, stop in itertools.pairwise([*starts, len(tries.key)]):
            host = tries.host[start:stop]
            workers, first = np.unique(host, return_index=True)
            last = len(host) - 1 - np.unique(host[::-1], return_index=True)[1]
            # A result may be late, but not that of both the first and the last try of a worker.
            for worker, *ends in np.stack([workers, first, last], axis=1).tolist():
                if not worker:
                    continue
                delays = [d for end in set(ends) for d in self._find_delays(tries.key[start + end])]
                zones = round(-min(delays, key=abs, default=0.0) / _QUARTER_HOUR_SEC)
                if zones:
                    shift = zones * _QUARTER_HOUR_SEC * 1_000_000
                    self.shifts[start:stop][host == worker] = shift
                    self._source.changes = True

    def _find_delays(self, key: int) -> list[float]:
        """Return the seconds from a try's end, by the worker's clock, to its result's return."""
        run, inside = divmod(int(key), 1 << RUN_BITS)
        task, attempt = divmod(inside, 1 << TRY_BITS)
        which = {"scope": run, "task": task, "attempt": attempt}
        delays = []
        for ended, returned in self._source.execute("worker_delay", which):
            try:
                delay = datetime.fromisoformat(returned) - datetime.fromisoformat(ended)
                delays.append(delay.total_seconds())
            except (TypeError, ValueError):
                delays.append(0.0)
        return delays


def _parse_part(row: tuple[Any, ...], wanted: Mapping[str, str]) -> Part | None:
    """Return the rows that a query joined; None if a value is not of its kind."""
    count, scope, *texts = row
    scopes = _parse_ints(scope)
    if len(scopes) == 1:
        scopes = np.repeat(scopes, count)
    part = Part(scopes, {}, {}, np.zeros(0, dtype=np.int64))
    for (column, kind), text in zip(wanted.items(), texts, strict=True):
        if kind == "int":
            array = part.ints[column] = _parse_ints(text)
        elif kind == "time":
            array = part.times[column] = parse_times(str(text or ""))
        else:
            codes = np.frombuffer(str(text or "").encode("utf-32-le", "replace"), dtype=np.uint32)
            array = codes.astype(np.int64) - _FIRST_STATE
            part = replace(part, state=array)
        if len(array) != count:
            return None
    return part if len(scopes) == count else None


def _parse_ints(text: object) -> Ints:
    """Return the numbers that are joined by commas; nothing if anything else is among them."""
    joined = "" if text is None else str(text)
    rest = joined.encode("utf-8", "replace").translate(None, b"0123456789-,")
    return parse_ints("" if rest else joined)
