"""The flag by which a signal lets a system call go on."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from mlflow_perf.core import restart_flag
from mlflow_perf.core.restart_flag import (
    handlers_interrupt_as_before,
    keeping_restart,
    lets_calls_go_on,
)
from mlflow_perf.session.own_handlers import OwnHandlers

pytestmark = pytest.mark.skipif(
    sys.platform not in ("linux", "darwin"), reason="its C structure is not known elsewhere"
)
_LIBC = ctypes.CDLL(None)


@pytest.fixture(autouse=True)
def _handled() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


def reads_through() -> bool:
    """Return whether a C library's `read` goes on after a SIGTERM."""
    reader, writer = os.pipe()

    def act() -> None:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        os.write(writer, b"x")

    thread = threading.Thread(target=act)
    thread.start()
    done: int = _LIBC.read(reader, ctypes.create_string_buffer(4), 1)
    thread.join()
    os.close(reader)
    os.close(writer)
    return done == 1


def test_the_flag_is_read() -> None:
    """It says what a system call really does."""
    for interrupts in (True, False):
        signal.siginterrupt(signal.SIGTERM, interrupts)
        assert lets_calls_go_on(signal.SIGTERM) is reads_through() is not interrupts


def test_another_handler_keeps_the_flag() -> None:
    """Python itself clears it; one that is not set stays so."""
    signal.siginterrupt(signal.SIGTERM, False)
    with keeping_restart(signal.SIGTERM):
        signal.signal(signal.SIGTERM, lambda *_: None)
    assert lets_calls_go_on(signal.SIGTERM)
    signal.siginterrupt(signal.SIGTERM, True)
    with keeping_restart(signal.SIGTERM):
        signal.signal(signal.SIGTERM, lambda *_: None)
    assert not lets_calls_go_on(signal.SIGTERM)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("changed", [True, False])
def test_our_handlers_leave_the_flag_to_the_job(*, before: bool, changed: bool) -> None:
    """It is as the job set it, while ours stand and afterwards, also if it changes it meanwhile."""
    signal.siginterrupt(signal.SIGTERM, before)
    ours = OwnHandlers((signal.SIGTERM,), lambda *_: None, lambda: None)
    ours.hide()
    ours.take(lambda _: True)
    during = reads_through()
    signal.siginterrupt(signal.SIGTERM, changed)
    ours.restore()
    assert (during, lets_calls_go_on(signal.SIGTERM)) == (not before, not changed)


def test_a_system_that_does_not_tell_the_flag_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is assumed of a C structure that is not known."""
    signal.siginterrupt(signal.SIGTERM, False)
    monkeypatch.setattr(restart_flag, "_RESTARTS", 0)
    assert not lets_calls_go_on(signal.SIGTERM)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_native_handler_of_a_librarys_import_interrupts_as_the_one_before(is_new: bool) -> None:
    """As Polars' for SIGINT; a flag that the job sets itself meanwhile stays."""
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: None)
    with handlers_interrupt_as_before():
        if is_new:
            _LIBC.signal(signal.SIGTERM, handler)  # the C library's sets the flag
        else:
            signal.siginterrupt(signal.SIGTERM, False)
        assert lets_calls_go_on(signal.SIGTERM)
    assert lets_calls_go_on(signal.SIGTERM) is not is_new
