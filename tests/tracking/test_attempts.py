"""Of what was tried again the last attempt counts."""

from __future__ import annotations

import pytest

from mlflow_perf.tracking.attempts import leave_out_retried
from mlflow_perf.tracking.perf_run import PerfRun


def _run(name: str, status: str, started: float, ended: float | None) -> PerfRun:
    return PerfRun(name, name=name, status=status, started=started, ended=ended)


@pytest.mark.parametrize(
    ("first", "later", "count"),
    [
        (("FAILED", 0.0, 5.0), (6.0, 9.0), 1),
        (("KILLED", 0.0, 5.0), (5.0, 9.0), 1),
        (("FAILED", 0.0, 5.0), (4.0, 9.0), 2),  # beside it, so no second attempt
        (("FINISHED", 0.0, 5.0), (6.0, 9.0), 2),
        (("KILLED", 0.0, None), (6.0, 9.0), 2),
    ],
)
def test_a_run_that_ended_badly_before_another_began_is_left_out(
    first: tuple[str, float, float | None], later: tuple[float, float], count: int
) -> None:
    """Whatever the last one's own end, and whatever other tasks did."""
    for last in "FINISHED", "FAILED":
        runs = [_run("a", *first), _run("a", last, *later), _run("b", "FAILED", 0.0, 1.0)]
        assert len(leave_out_retried(runs, lambda run: run.name)) == count + 1


def test_the_last_attempt_stays_however_short_it_was() -> None:
    """It began when it ended, but nobody tried it again."""
    run = _run("a", "FAILED", 3.0, 3.0)
    assert leave_out_retried([run], lambda run: run.name) == [run]
