"""The statements of the monitoring importer, filled in for one database.

Imports nothing of ours. `monitoring.sql` says what its placeholders stand for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["FIRST_STATE", "STATES", "WORKER_STATES", "Statements"]

# Parsl's states; others are looked for only where these leave rows over.
STATES = (
    "pending", "launched", "running", "running_ended", "joining", "exec_done", "memo_done",
    "failed", "dep_fail", "fail_retryable", "unsched", "exec_retry",
)  # fmt: skip
FIRST_STATE = 0x100
"""The character that stands for the first state; the others follow."""

WORKER_STATES = ("running", "running_ended")
"""Written by the worker, in its own zone; the other states by the submitting process."""

# What the statements call the source's tables.
_ALIASES = {"w": "workflow", "t": "task", "y": "try", "try": "try"}

_OPTIONAL = re.compile(r"@optional\((\w+)\.(\w+)\)")
_OF_RUN = re.compile(r"@of_run\(([\w.]+) (\w)\)")
_TIME = re.compile(r"@(time|sample_time)\(([\w.]+)\)")
_NO_TIME = "?" * 26


@dataclass
class Statements:
    """The statements, for one database.

    Attributes:
        columns: The columns of each of its tables.
        states: The number of each state's name.
        runs: How many runs it holds.
        changes: Whether any run saw its UTC offset change, or any worker has another one.
    """

    columns: dict[str, set[str]]
    states: dict[str, int]
    runs: int = 0
    changes: bool = False

    def text(self, name: str) -> str:
        """Return a statement with its placeholders filled in."""
        text = _OPTIONAL.sub(self._optional, _statements()[name])
        return _TIME.sub(self._time, _OF_RUN.sub(self._of_run, text))

    def joined(self, table: str, wanted: Mapping[str, str], *, care: int) -> str:
        """Return the query that gives some rows of a table, each of its columns joined to a text.

        Args:
            table: The table.
            wanted: Its columns, each with its kind: `int`, `time` or `state`.
            care: Of how many shapes values may be: 0: as Parsl writes them; 1: times without a
                fraction too, which are rare; 2: any, and missing ones.

        Returns:
            A query with the first and the last row number as its parameters. It gives the number
            of rows, their runs' scopes (one for all where there is one run) and the columns: whole
            numbers by commas, times of 26 characters each, states of one.
        """
        fill = {"int": _int_column, "time": _time_column, "state": self._state_column}
        columns = ", ".join(fill[kind](f"s.{column}", care) for column, kind in wanted.items())
        rows = "s.rowid BETWEEN ? AND ?"
        if self.runs == 1:
            # Twice as fast as the join.
            return (
                f"SELECT count(*), (SELECT scope_id FROM temp.run), {columns} FROM source.{table} s"  # noqa: S608 - names of ours
                f" WHERE {rows} AND s.run_id = (SELECT run_id FROM temp.run)"
            )
        return (
            f"SELECT count(*), group_concat(r.scope_id), {columns} FROM source.{table} s"  # noqa: S608 - names of ours
            f" CROSS JOIN temp.run r ON r.run_id = s.run_id WHERE {rows}"
        )

    def _state_column(self, column: str, _care: int) -> str:
        cases = " ".join(
            f"WHEN '{_quoted(state)}' THEN '{chr(FIRST_STATE + n)}'"
            for n, state in enumerate(self.states)
        )
        return f"group_concat(CASE {column} {cases} ELSE '{chr(FIRST_STATE - 1)}' END, '')"

    def _optional(self, match: re.Match[str]) -> str:
        known = match[2] in self.columns[_ALIASES[match[1]]]
        return f"{match[1]}.{match[2]}" if known else "NULL"

    def _of_run(self, match: re.Match[str]) -> str:
        # With one run, the run is looked up once and not for each of a million rows.
        tables = [f"{match[1]} {match[2]}", "temp.run r"]
        outer, inner = reversed(tables) if self.runs == 1 else tables
        return f"{outer} CROSS JOIN {inner} ON r.run_id = {match[2]}.run_id"

    def _time(self, match: re.Match[str]) -> str:
        """Return the SQL for the Unix microseconds of a local time.

        `unixepoch()` of a fractional time rounds .9995 up to the next second: it is given the whole
        seconds only. Parsl writes six digits, or none where they are all zero.
        """
        kind, column = match.groups()
        fraction = (
            f"CASE length({column}) WHEN 26 THEN substr({column}, 21) + 0"
            f" ELSE CAST(substr(substr({column}, 21) || '000000', 1, 6) AS INTEGER) END"
        )
        whole = f"unixepoch(substr({column}, 1, 19)) * 1000000 + {fraction}"
        if not self.changes:
            return f"{whole} - r.offset_us"
        changed = f"r.change <> '' AND {column} >= r.change"
        local = f"{whole} - CASE WHEN {changed} THEN r.later_us ELSE r.offset_us END"
        if kind == "sample_time":
            return f"{local} - m.shift_us"
        return local


def _int_column(column: str, care: int) -> str:
    whole = f"CASE typeof({column}) WHEN 'integer' THEN {column} ELSE -1 END"
    return f"group_concat({whole if care == 2 else column})"


def _time_column(column: str, care: int) -> str:
    """Return the SQL for times of 26 characters."""
    whole = f"substr({column}, 1, 19) || '.' || substr(substr({column}, 21) || '000000', 1, 6)"
    shapes = (
        column,
        f"CASE length({column}) WHEN 26 THEN {column} ELSE {column} || '.000000' END",
        f"coalesce(substr({whole} || '{_NO_TIME}', 1, 26), '{_NO_TIME}')",
    )
    return f"group_concat({shapes[care]}, '')"


@cache
def _statements() -> dict[str, str]:
    text = files(__package__).joinpath("monitoring.sql").read_text("utf-8")
    named = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    texts = (statement.strip().removesuffix(";") for statement in named[1::2])
    return dict(zip(named[::2], texts, strict=True))


def _quoted(text: str) -> str:
    """Return a text as it stands within an SQL string."""
    return text.replace("'", "''")
