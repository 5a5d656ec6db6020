"""Which function called a shared one."""

from __future__ import annotations

from typing import Any

import pytest

from mlflow_perf.model.callers import describe_place, find_main_caller


def make_row(error_s: float = 0.0, **callers: float) -> dict[str, Any]:
    """Return a row of a profile: a function with the seconds for each of its callers."""
    rows = [
        {"function": name, "file": "job.py", "main_s": sec, "main_error_s": error_s}
        for name, sec in callers.items()
    ]
    return {"function": "burn", "main_s": sum(callers.values()), "callers": rows}


@pytest.mark.parametrize(
    ("row", "caller"),
    [
        (make_row(parse=7.0, load=3.0), "parse"),
        (make_row(2.5, parse=7.0, load=3.0), None),
        (make_row(parse=5.0, load=5.0), None),
        (make_row(parse=4.0, load=3.0, save=3.0), None),
        (make_row(parse=7.0), None),
        ({"function": "burn", "main_s": 7.0}, None),
        ({"function": "burn", "main_s": 7.0, "callers": [1, "x"]}, None),
    ],
)
def test_the_caller_with_most_of_the_time_is_named(row: dict[str, Any], caller: str | None) -> None:
    """Only if several call the function, and one has more than half of it for sure."""
    assert find_main_caller(row, "main") == caller


def test_a_place_names_the_caller_for_people() -> None:
    """With and without it, in code spans and in plain text."""
    assert describe_place("burn", "parse", "`") == "`burn` (called by `parse`)"
    assert describe_place("burn", None) == "burn"
