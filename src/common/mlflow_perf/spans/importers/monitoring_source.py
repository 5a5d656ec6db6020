"""An attached monitoring database of Parsl: its statements, and its large tables as arrays."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from mlflow_perf.spans.database.bulk import Ints, parse_ints
from mlflow_perf.spans.importers.local_time import NO_TIME, parse_times

__all__ = ["RUN_BITS", "STATES", "TRY_BITS", "MonitoringSource", "Part", "SpanIndex"]

RUN_BITS, TRY_BITS = 44, 16
"""A span's key in an index: the run's number, then 44 bits; the last 16 are the number of a try."""

# Parsl's states; other states are read from the database only if these leave rows over.
STATES = (
    "pending", "launched", "running", "running_ended", "joining", "exec_done", "memo_done",
    "failed", "dep_fail", "fail_retryable", "unsched", "exec_retry",
)  # fmt: skip
# In joined texts this character stands for the first state, the next one for the second.
_FIRST_STATE = 0x100
_ROWS = 100_000
# The levels of care with which a query reads values: as Parsl writes them; also times without a
# fraction, which are rare; any value, and missing ones.
_AS_WRITTEN, _ANY_VALUE = 0, 2

# The aliases of the source's tables in the statements.
_ALIASES = {"w": "workflow", "t": "task", "y": "try", "try": "try"}
_OPTIONAL = re.compile(r"@optional\((\w+)\.(\w+)\)")
_OF_RUN = re.compile(r"@of_run\(([\w.]+) (\w)\)")
_TIME = re.compile(r"@(time|sample_time)\(([\w.]+)\)")
_NO_TIME = "?" * 26


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
    ints: Mapping[str, Ints]
    times: Mapping[str, Ints]
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

        text = _OPTIONAL.sub(fill_optional, _read_statements()[name])
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
        for care in range(_AS_WRITTEN, _ANY_VALUE + 1):
            query = self._join_columns(table, wanted, care=care)
            part = _parse_part(self.db.execute(query, rows).fetchone(), wanted)
            if part is not None and (
                care == _ANY_VALUE or not any((t == NO_TIME).any() for t in part.times.values())
            ):
                return part
        raise ValueError(f"rows {rows[0]} to {rows[1]} of the table {table} cannot be read")

    def _join_columns(self, table: str, wanted: Mapping[str, str], *, care: int) -> str:
        """Return the query that joins each column of some rows to one text.

        Args:
            table: The table.
            wanted: Its columns, each with its kind: `int`, `time` or `state`.
            care: How irregular values may be: from `_AS_WRITTEN` to `_ANY_VALUE`.

        Returns:
            A query with the first and the last row number as parameters. It gives the number of
            rows, the scopes of their runs (a single one if there is one run) and the columns: whole
            numbers with commas, times of 26 characters each, states of one character each.
        """
        columns = []
        for name, kind in wanted.items():
            column = f"s.{name}"
            if kind == "int":
                whole = f"CASE typeof({column}) WHEN 'integer' THEN {column} ELSE -1 END"
                columns.append(f"group_concat({whole if care == _ANY_VALUE else column})")
            elif kind == "time":
                micros = f"substr(substr({column}, 21) || '000000', 1, 6)"
                padded = f"substr({column}, 1, 19) || '.' || {micros} || '{_NO_TIME}'"
                shapes = (
                    column,
                    f"CASE length({column}) WHEN 26 THEN {column} ELSE {column} || '.000000' END",
                    f"coalesce(substr({padded}, 1, 26), '{_NO_TIME}')",
                )
                columns.append(f"group_concat({shapes[care]}, '')")
            else:
                names = (state.replace("'", "''") for state in self.states)
                cases = (f"WHEN '{s}' THEN '{chr(_FIRST_STATE + n)}'" for n, s in enumerate(names))
                state = f"CASE {column} {' '.join(cases)} ELSE '{chr(_FIRST_STATE - 1)}' END"
                columns.append(f"group_concat({state}, '')")
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


def _parse_part(row: tuple[Any, ...], wanted: Mapping[str, str]) -> Part | None:
    """Return the rows that a query joined; None if a value is not of its kind."""
    count, scope, *texts = row
    scopes = _parse_ints(scope)
    if len(scopes) == 1:
        scopes = np.repeat(scopes, count)
    ints, times, state = {}, {}, None
    for (column, kind), text in zip(wanted.items(), texts, strict=True):
        if kind == "int":
            ints[column] = _parse_ints(text)
        elif kind == "time":
            times[column] = parse_times(str(text or ""))
        else:
            codes = np.frombuffer(str(text or "").encode("utf-32-le", "replace"), dtype=np.uint32)
            state = codes.astype(np.int64) - _FIRST_STATE
    found = [scopes, *ints.values(), *times.values(), *([] if state is None else [state])]
    if any(len(array) != count for array in found):
        return None
    return Part(scopes, ints, times, np.zeros(0, dtype=np.int64) if state is None else state)


def _parse_ints(text: object) -> Ints:
    """Return the numbers that are joined by commas; nothing if anything else is among them."""
    joined = "" if text is None else str(text)
    rest = joined.encode("utf-8", "replace").translate(None, b"0123456789-,")
    return parse_ints("" if rest else joined)


@cache
def _read_statements() -> dict[str, str]:
    text = files(__package__).joinpath("monitoring.sql").read_text("utf-8")
    named = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    texts = (statement.strip().removesuffix(";") for statement in named[1::2])
    return dict(zip(named[::2], texts, strict=True))
