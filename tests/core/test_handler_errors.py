"""An error of the job's signal handler is told from an error of ours."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy

from mlflow_perf.core.handler_errors import is_from_handler


def _fail(*_: object) -> None:
    raise TimeoutError("too late")


class _Handler:
    def __call__(self, *_: object) -> None:
        _fail()

    def handle(self, *_: object) -> None:
        _fail()


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "handler", [_fail, lambda *_: _fail(), _Handler(), _Handler().handle, functools.partial(_fail)]
)
def test_an_error_of_a_handler_is_the_jobs(handler: Callable[..., Any]) -> None:
    """Functions, methods, partials and objects that are called: each is found in the traceback."""
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(TimeoutError) as caught:
        os.kill(os.getpid(), signal.SIGUSR1)
    assert is_from_handler(caught.value)


def test_the_same_error_without_a_signal_is_not() -> None:
    """An error is judged by where it was raised, not by its type."""
    signal.signal(signal.SIGUSR1, lambda *_: None)
    with pytest.raises(TimeoutError) as caught:
        _fail()
    assert not is_from_handler(caught.value)
    assert not is_from_handler(TimeoutError())


def test_what_a_codec_makes_of_it_is_the_jobs_too() -> None:
    """An error that was raised from a handler's is the job's."""
    signal.signal(signal.SIGUSR1, _fail)
    wrapped = ValueError("while encoding")
    with pytest.raises(TimeoutError) as caught:
        os.kill(os.getpid(), signal.SIGUSR1)
    wrapped.__cause__ = caught.value
    assert is_from_handler(wrapped)


class ThrownError(Exception):
    """What another thread throws in."""


def test_what_another_thread_throws_in_is_the_jobs() -> None:
    """As libraries do that end a function after its time; the same error with a `raise` is not."""

    def work() -> None:
        throw(threading.get_ident(), ThrownError)
        while True:
            pass

    throw = ctypes.pythonapi.PyThreadState_SetAsyncExc
    throw.argtypes = (ctypes.c_ulong, ctypes.py_object)
    with pytest.raises(ThrownError) as caught:
        work()
    assert is_from_handler(caught.value)
    with pytest.raises(ThrownError) as caught:
        raise ThrownError
    assert not is_from_handler(caught.value)


@pytest.mark.parametrize(
    "call", [lambda: json.loads("{"), lambda: os.stat("/no/file"), lambda: bytes.fromhex("x")]
)
def test_what_c_raises_is_not(call: Callable[[], object]) -> None:
    """It is there without a `raise` too."""
    with pytest.raises((ValueError, OSError, TypeError)) as caught:
        call()
    assert not is_from_handler(caught.value)


def test_what_a_driver_raises_is_not() -> None:
    """SQLAlchemy gives its own error the traceback of the driver's, which has no `raise`."""
    engine = sqlalchemy.create_engine("sqlite:////proc/no/such.db")
    with pytest.raises(sqlalchemy.exc.OperationalError) as caught:
        engine.connect()
    assert not is_from_handler(caught.value)
