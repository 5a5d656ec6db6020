"""Calls with a deadline."""

from __future__ import annotations

import threading

import pytest

from mlflow_perf.core.background_call import BackgroundCall


def test_the_result_is_that_of_the_call() -> None:
    """The call runs in a daemon thread of its own, and its result can be read more than once."""
    call = BackgroundCall(threading.current_thread, name="test")
    thread = call.result(30)
    assert thread is call.result(30)
    assert (thread.name, thread.daemon) == ("perf-test", True)


def test_an_exception_is_raised_again() -> None:
    """The exception of the call is raised where its result is read."""

    def fail() -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        BackgroundCall(fail, name="test").result(30)


def test_the_caller_goes_on_at_its_deadline() -> None:
    """A call that takes too long continues after its deadline, and its result comes later."""
    leave = threading.Event()
    call = BackgroundCall(lambda: leave.wait(30), name="test")
    assert not call.done_within(0)
    with pytest.raises(TimeoutError, match="no answer in time"):
        call.result(-1)
    with pytest.raises(TimeoutError, match="no answer within 1 s"):
        call.result(1.2)
    leave.set()
    assert call.done_within(30)
    assert call.result(0) is True
