"""Rules of `mlflow_perf.time`: it finds the session by itself, and does nothing without one."""

from __future__ import annotations

import pytest

import mlflow_perf
from mlflow_perf import OperationMetrics
from mlflow_perf.recorders import current


def _counts(recorder: OperationMetrics) -> dict[str, int]:
    return {name: stats.count for name, stats in recorder.aggregate_times().items()}


def test_no_session_records_nothing() -> None:
    """Without a session, a timer and a decorated function do nothing but run the code."""

    @mlflow_perf.time("f")  # type: ignore[untyped-decorator]  # the public name is loaded late
    def function() -> int:
        return 3

    with mlflow_perf.time("x") as timer:
        assert function() == 3
    assert current.recorder() is None
    assert timer.elapsed_ms == 0


def test_decorated_before_a_session_records_within_it() -> None:
    """A function decorated at import is timed once a session is on, and no longer after it."""

    @mlflow_perf.time("f")  # type: ignore[untyped-decorator]  # the public name is loaded late
    def function() -> None: ...

    recorder = OperationMetrics()
    function()
    current.activate(recorder, folder=None)
    function()
    current.deactivate()
    function()
    assert _counts(recorder) == {"f": 1}


def test_one_idle_timer_is_shared() -> None:
    """Without a session, all callers of a name get the same object; a key has its own."""
    assert mlflow_perf.time("shared") is mlflow_perf.time("shared")
    assert mlflow_perf.time("shared", "key") is not mlflow_perf.time("shared", "key")


def test_a_wrong_name_never_raises_in_a_session(caplog: pytest.LogCaptureFixture) -> None:
    """A name that is no text is recorded as text, a wrong key is left out, with one warning."""
    recorder = OperationMetrics()
    current.activate(recorder, folder=None)
    with mlflow_perf.time(3), mlflow_perf.time("load", {}):  # type: ignore[arg-type]
        pass
    current.deactivate()
    assert _counts(recorder) == {"3": 1, "load": 1}
    assert len(caplog.records) <= 1
