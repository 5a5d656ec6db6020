"""Calls with a deadline."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from mlflow_perf.core import background_call
from mlflow_perf.core.background_call import BackgroundCall, undisturbed


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
    with pytest.raises(TimeoutError, match="it was not done in time"):
        call.result(-1)
    with pytest.raises(TimeoutError, match="it was not done within 1 s"):
        call.result(1.2)
    leave.set()
    assert call.done_within(30)
    assert call.result(0) is True


class TooLateError(Exception):
    """What the job's handler raises."""


@pytest.fixture
def ring() -> Iterator[Callable[[], None]]:
    """Let the main thread be interrupted by a handler that raises; return what interrupts it."""

    def raise_it(*_: object) -> None:
        raise TooLateError

    before = signal.signal(signal.SIGUSR1, raise_it)
    yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="Windows has no such signals")
def test_a_handler_that_raises_disturbs_no_call(ring: Callable[[], None]) -> None:
    """It ends the wait, and only when the call is done; the call's own error passes too."""
    done: list[str] = []

    def call() -> str:
        ring()
        threading.Event().wait(0.1)
        done.append("all of it")
        return "answer"

    with pytest.raises(TooLateError):
        undisturbed(call)
    assert done == ["all of it"]
    assert undisturbed(lambda: "answer") == "answer"
    with pytest.raises(ZeroDivisionError):
        undisturbed(lambda: 1 // 0)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="Windows has no such signals")
def test_a_call_that_was_waited_for_in_vain_is_not_done(ring: Callable[[], None]) -> None:
    """Python up to 3.12 takes a thread for ended when a handler raises while it is joined."""
    awaited, over = threading.Event(), threading.Event()

    def work() -> str:
        awaited.wait(60)
        ring()
        over.wait(60)
        return "answer"

    calling = BackgroundCall(work, name="test")
    awaited.set()
    with pytest.raises(TooLateError):
        calling.done_within(60)
    assert not calling.done_within(0.05)
    over.set()
    assert calling.result(60) == "answer"


def test_a_thread_that_ends_before_its_call_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job may replace a built-in function by one that raises."""
    monkeypatch.setattr(background_call, "_PATIENCE_SEC", 0.1)
    monkeypatch.setattr(BackgroundCall, "work", lambda _self: None)
    with pytest.raises(TimeoutError):
        undisturbed(lambda: None)
