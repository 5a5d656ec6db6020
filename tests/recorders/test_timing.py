"""Rules of `mlflow_perf.time`: it finds the session by itself, and does nothing without one."""

from __future__ import annotations

import itertools
import threading

import pytest

import mlflow_perf
from mlflow_perf import OperationMetrics
from mlflow_perf.recorders import current, operations, timing


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


def test_decorated_within_a_session_records_in_the_next_one_too() -> None:
    """A module may be imported inside the first of several blocks."""
    first, second = OperationMetrics(), OperationMetrics()
    current.activate(first, folder=None)

    @mlflow_perf.time("f")  # type: ignore[untyped-decorator]  # the public name is loaded late
    def function() -> None: ...

    function()
    current.deactivate()
    current.activate(second, folder=None)
    function()
    current.deactivate()
    function()
    assert (_counts(first), _counts(second)) == ({"f": 1}, {"f": 1})


def test_a_timer_that_is_entered_again_while_it_is_open_measures_each_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Inside its own block, and in another thread at the same time."""
    clock = itertools.count(0, 1_000_000)
    for module in (timing, operations.timer):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: next(clock))
    recorder, times_ms = OperationMetrics(), list[float]()
    monkeypatch.setattr(
        OperationMetrics, "add_time", lambda _, _name, _key, time_ms: times_ms.append(time_ms)
    )
    current.activate(recorder, folder=None)
    timer = mlflow_perf.time("f")

    def elsewhere() -> None:
        with timer:  # 1
            entered.set()
            left.wait(30)

    entered, left = threading.Event(), threading.Event()
    thread = threading.Thread(target=elsewhere)
    with timer:  # from 0
        thread.start()
        assert entered.wait(30)
        with timer:  # from 2 to 3
            pass
    left.set()  # the first one ended at 4, the thread's ends at 5
    thread.join()
    timer.start().stop()  # from 6 to 7
    current.deactivate()
    assert times_ms == [1.0, 4.0, 4.0, 1.0]
