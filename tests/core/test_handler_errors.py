"""An error of the job's signal handler is told from an error of ours."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

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
