"""Handlers of ours: they hear the job's signals, and the job sees its own in their places."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed does not have it
import _thread
import ctypes
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.alone import alone
from tests.interrupted import check_each_line

from mlflow_perf.session.own_handlers import OwnHandlers

Came = list[tuple[int, bool]]


def make(came: Came) -> OwnHandlers:
    """Return handlers that note each signal and whether it would end the process."""
    return OwnHandlers(
        (signal.SIGTERM, signal.SIGHUP), lambda *what: came.append(what), lambda: None
    )


@pytest.fixture
def came() -> Came:
    """Return a list for what comes."""
    return []


@pytest.fixture
def ours(came: Came) -> Iterator[OwnHandlers]:
    """Return handlers that stand in the place of every one."""
    functions = _signal.signal, _signal.getsignal, _thread.interrupt_main
    ours = make(came)
    ours.hide()
    ours.take(lambda handler: True)
    yield ours
    ours.restore()
    assert (_signal.signal, _signal.getsignal, _thread.interrupt_main) == functions
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_thread_that_interrupts_meets_the_jobs_handlers_alone(
    ours: OwnHandlers, came: Came
) -> None:
    """`_thread.interrupt_main` does nothing where a signal has no handler of Python's."""
    _thread.interrupt_main(signal.SIGTERM)
    assert came == []
    with pytest.raises(KeyboardInterrupt):
        _thread.interrupt_main()
    called = list[int]()
    signal.signal(signal.SIGTERM, lambda number, _: called.append(number))
    _thread.interrupt_main(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert called == [signal.SIGTERM]


def test_the_job_sees_no_handler_where_ours_stands(ours: OwnHandlers, came: Came) -> None:
    """Neither function gives ours away, and the default that the job sets is ours again."""
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.signal(signal.SIGTERM, signal.SIG_IGN) is signal.SIG_DFL
    os.kill(os.getpid(), signal.SIGTERM)
    assert signal.signal(signal.SIGTERM, signal.SIG_DFL) is signal.SIG_IGN
    os.kill(os.getpid(), signal.SIGTERM)
    assert came == [(signal.SIGTERM, True)]


def test_an_earlier_handler_is_called_and_seen(came: Came) -> None:
    """The job's own from before runs, and no end is asked for."""
    called: list[int] = []

    def note(number: int, frame: Any) -> None:
        called.append(number)

    before = signal.signal(signal.SIGTERM, note)
    ours = make(came)
    ours.hide()
    ours.take(lambda handler: handler is note)
    try:
        assert signal.getsignal(signal.SIGTERM) is note
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        ours.restore()
        assert signal.signal(signal.SIGTERM, before) is note
    assert called == [signal.SIGTERM]
    assert came == [(signal.SIGTERM, False)]


def test_a_handler_of_the_job_that_calls_ours_ends_nothing(ours: OwnHandlers, came: Came) -> None:
    """Code that has found our handler may call it as the earlier one; without us there is none."""
    signal.signal(signal.SIGTERM, functools.partial(ours))
    os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert came == [(signal.SIGTERM, False)]


def test_each_time_that_ours_takes_a_place_is_told() -> None:
    """The thread that hears of a signal so knows whether it was the job's then."""
    told: list[int] = []

    def note() -> None:
        told.append(handlers.taken)

    handlers = OwnHandlers((signal.SIGTERM,), lambda *_: None, note)
    handlers.hide()
    handlers.take(lambda handler: True)
    handlers.take(lambda handler: True)  # it is there already
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    handlers.restore()
    assert told == [1, 2]


def test_another_thread_can_neither_set_nor_restore(ours: OwnHandlers) -> None:
    """Setting is the error that it always was, and a handler that must stay is not seen."""

    def call() -> None:
        with pytest.raises(ValueError, match="main thread"):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with pytest.raises(ValueError, match="main thread"):
            ours.restore()
        ended.set()

    ended = threading.Event()
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert ended.is_set()
    assert ours.is_fatal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_handlers_that_had_to_stay_are_replaced_by_the_next_ones(
    ours: OwnHandlers, came: Came
) -> None:
    """The next ones stand for what the former stood for."""
    later: Came = []
    following = make(later)
    following.hide()
    following.take(lambda handler: handler == signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    following.restore()
    assert later == [(signal.SIGTERM, True)]
    assert came == []


_LIBC = ctypes.CDLL(None)
_LIBC.signal.argtypes, _LIBC.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p


@pytest.fixture
def native() -> Iterator[Callable[[], object]]:
    """Yield what sets a handler of C for SIGTERM, and returns what was there."""
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: None)
    before = signal.getsignal(signal.SIGTERM)
    yield lambda: _LIBC.signal(signal.SIGTERM, ctypes.cast(handler, ctypes.c_void_p))
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("of_job", [signal.SIG_DFL, signal.SIG_IGN, lambda *_: None])
def test_a_native_handler_stays(
    of_job: Any, native: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a JVM, or of `faulthandler.register`, over whatever Python has set before."""
    signal.signal(signal.SIGTERM, of_job)
    native()
    ours = make([])
    ours.hide()
    ours.take(lambda handler: handler is not None)
    assert signal.getsignal(signal.SIGTERM) is of_job
    ours.restore()
    assert native() == native()


def test_a_native_handler_that_comes_over_ours_stays_for_the_next_ones(
    native: Callable[[], Any], came: Came
) -> None:
    """Ours below it is called where it hands a signal on, and is one that the job does not see."""
    functions = _signal.signal, _signal.getsignal, _thread.interrupt_main
    first = make([])
    first.hide()
    first.take(lambda handler: True)
    interpreters = native()
    first.restore()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    _thread.interrupt_main(signal.SIGTERM)
    ours = make(came)
    ours.hide()
    ours.take(lambda handler: True)
    assert native() == native()
    _LIBC.signal(signal.SIGTERM, interpreters)
    os.kill(os.getpid(), signal.SIGTERM)
    assert came == [(signal.SIGTERM, True)]
    native()
    ours.restore()
    assert signal.signal(signal.SIGTERM, signal.SIG_DFL) is signal.SIG_DFL
    ours.hide()
    ours.restore()
    assert (_signal.signal, _signal.getsignal, _thread.interrupt_main) == functions


@alone
def test_nothing_stays_wherever_an_alarm_raises() -> None:
    """The job's handlers, and the functions that it sets them with, are its own afterwards."""
    made: list[OwnHandlers] = []

    def act() -> None:
        made.append(make([]))
        made[-1].hide()
        made[-1].take(lambda handler: True)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def restore() -> None:
        while made:
            made.pop().restore()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    assert check_each_line(act, restore) > 20
