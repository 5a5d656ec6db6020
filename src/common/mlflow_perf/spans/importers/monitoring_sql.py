"""The statements of the monitoring importer, filled in for one database.

Imports nothing of ours. `monitoring.sql` says what its placeholders stand for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["STATES", "Statements"]

# Parsl's states; others are looked for only where these leave rows over.
STATES = (
    "pending", "launched", "running", "running_ended", "joining", "exec_done", "memo_done",
    "failed", "dep_fail", "fail_retryable", "unsched", "exec_retry",
)  # fmt: skip
# Written by the worker, in its own zone; the other states by the submitting process.
_WORKER_STATES = ("running", "running_ended")
# What the statements call the source's tables.
_ALIASES = {"w": "workflow", "t": "task", "y": "try", "try": "try"}

_OPTIONAL = re.compile(r"@optional\((\w+)\.(\w+)\)")
_OF_RUN = re.compile(r"@of_run\(([\w.]+) (\w)\)")
_STATE = re.compile(r"@state\(([\w.]+)\)")
_TIME = re.compile(r"@(time|worker_time|sample_time)\(([\w.]+)\)")


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
        for pattern, fill in ((_OF_RUN, self._of_run), (_STATE, self._state), (_TIME, self._time)):
            text = pattern.sub(fill, text)
        return text

    def _optional(self, match: re.Match[str]) -> str:
        known = match[2] in self.columns[_ALIASES[match[1]]]
        return f"{match[1]}.{match[2]}" if known else "NULL"

    def _of_run(self, match: re.Match[str]) -> str:
        # With one run, the run is looked up once and not for each of a million rows.
        tables = [f"{match[1]} {match[2]}", "temp.run r"]
        outer, inner = reversed(tables) if self.runs == 1 else tables
        return f"{outer} CROSS JOIN {inner} ON r.run_id = {match[2]}.run_id"

    def _state(self, match: re.Match[str]) -> str:
        cases = " ".join(
            f"WHEN '{_quoted(state)}' THEN {number}" for state, number in self.states.items()
        )
        return f"CASE {match[1]} {cases} END"

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
        if kind == "worker_time":
            states = ", ".join(f"'{state}'" for state in _WORKER_STATES)
            there = f"s.task_status_name IN ({states})"
            return f"{local} - CASE WHEN {there} THEN m.shift_us ELSE 0 END"
        return local


@cache
def _statements() -> dict[str, str]:
    text = files(__package__).joinpath("monitoring.sql").read_text("utf-8")
    named = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    texts = (statement.strip().removesuffix(";") for statement in named[1::2])
    return dict(zip(named[::2], texts, strict=True))


def _quoted(text: str) -> str:
    """Return a text as it stands within an SQL string."""
    return text.replace("'", "''")
