"""Threads that take turns on one CPU are told from those that compute side by side."""

from __future__ import annotations

import pytest

from mlflow_perf.analysis.taking_turns import average_switches, find_several, find_turns
from mlflow_perf.analysis.usage import Usage


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, 1.0),
        ({"threads": 2.0}, 0.0),  # one beside the main thread, which mostly waits for it
        ({"used": 1.9}, 0.0),  # two CPUs at once
        ({"switches": 20.0}, 0.0),  # a thread that computes keeps its CPU
        ({"beside": 0.05}, 0.0),  # one thread does it all
        ({"several": 1.0}, 0.0),  # each process has a lock of its own
        ({"switches": 100.0}, 0.5),
    ],
)
def test_what_shows_that_threads_take_turns(change: dict[str, float], expected: float) -> None:
    """Several threads that share the work, one CPU in all, and hundreds of switches a second."""
    job = {"used": 1.0, "threads": 4.0, "switches": 400.0, "beside": 0.75, "several": 0.0}
    assert find_turns(**{**job, **change}) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("apart", "processes", "expected"),
    [
        (None, 1.0, 0.0),
        (None, 2.0, 1.0),
        (0.0, 3.0, 0.0),  # a shell, `tee` and a program
        (5.0, 1.0, 1.0),
        (2.0, 2.0, 0.5),
    ],
)
def test_several_processes_did_the_computing(
    apart: float | None, processes: float, expected: float
) -> None:
    """Their number tells only where their parts are unknown."""
    assert find_several(apart, of=10.0, processes=processes) == pytest.approx(expected)


def test_switches_are_told_per_second_of_the_block() -> None:
    """A block without a length has none."""
    facts = {"duration_sec": 4.0, "job_voluntary_switches": 200.0}
    assert average_switches(Usage(facts, {})) == 50.0
    assert average_switches(Usage({**facts, "duration_sec": 0.0}, {})) == 0.0
