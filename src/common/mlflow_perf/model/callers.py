"""Says which of the job's own functions called a function that several of them share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mlflow_perf.core.json_io import read_number


class CodePlace(NamedTuple):
    """A place in the job's code.

    Attributes:
        function: Name of the function; None if it is unknown.
        caller: The function that called it for most of its time, if several call it.
    """

    function: str | None = None
    caller: str | None = None


def describe_caller(caller: str, mark: str = "") -> str:
    """Return who called a function, for people: "called by parse_dates"."""
    return f"called by {mark}{caller}{mark}"


def describe_place(function: str, caller: str | None, mark: str = "") -> str:
    """Return a function and who called it, for people: "burn (called by parse_dates)".

    Args:
        function: Name of the function.
        caller: Name of the caller, if it is worth saying.
        mark: What names are put in, such as a backtick.
    """
    name = f"{mark}{function}{mark}"
    return name if caller is None else f"{name} ({describe_caller(caller, mark)})"


def read_callers(row: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the callers in a row of `Profile.list_own`; None in an older document's."""
    callers = row.get("callers")
    if not isinstance(callers, list):
        return None
    return [caller for caller in callers if isinstance(caller, dict)]


def find_main_caller(row: Mapping[str, Any], key: str) -> str | None:
    """Return the caller that has the larger part of a function's time, if several call it.

    None too where the number of samples is too small to say so.

    Args:
        row: A row of `Profile.list_own`.
        key: `main` for the main thread's time, `cpu` for the CPU time of all.
    """
    half = 0.5 * (read_number(row.get(f"{key}_s")) or 0.0)
    callers = read_callers(row) or []
    for caller in callers if len(callers) > 1 else ():
        seconds, error = (
            read_number(caller.get(f"{key}{end}")) or 0.0 for end in ("_s", "_error_s")
        )
        if seconds - error > half:
            return str(caller.get("function"))
    return None
