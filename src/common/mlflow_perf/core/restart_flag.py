"""The kernel's flag by which a signal lets a system call go on, and does not make it fail.

`signal.siginterrupt` sets it, and nothing in Python reads it. `signal.signal` clears it.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
from collections.abc import Iterator

from mlflow_perf.core.originals import os

_siginterrupt = getattr(signal, "siginterrupt", None)
_MASK_BYTES, _RESTARTS = {"linux": (128, 0x10000000), "darwin": (4, 2)}.get(sys.platform, (0, 0))


class _Action(ctypes.Structure):
    """C's `struct sigaction`, with room behind it; on MIPS the flags come first."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_char * _MASK_BYTES),
        ("flags", ctypes.c_int),
        ("room", ctypes.c_char * 64),
    )


@contextlib.contextmanager
def keeping_restart(number: int) -> Iterator[None]:
    """Keep a signal's flag while its handler is replaced in Python, in the main thread."""
    restarts = lets_calls_go_on(number)
    try:
        yield
    finally:
        if restarts and _siginterrupt is not None:
            _siginterrupt(number, False)


@contextlib.contextmanager
def handlers_interrupt_as_before() -> Iterator[None]:
    """Let native handlers that an import of ours installs leave this flag as it was.

    Polars, which MLflow imports where it is installed, takes SIGINT with the flag, and hands it on
    to Python: Ctrl-C would no longer end the job's wait for a lock, a thread or a pool.
    """
    before = {number: _read_action(number) for number in signal.valid_signals()}
    try:
        yield
    finally:
        for number, (handler, restarts) in before.items():
            handler_now, restarts_now = _read_action(number)
            if restarts_now and not restarts and handler_now != handler and _siginterrupt:
                _siginterrupt(number, True)


def lets_calls_go_on(number: int) -> bool:
    """Return whether a system call goes on after this signal; False where that is not known."""
    return _read_action(number)[1]


def _read_action(number: int) -> tuple[int | None, bool]:
    """Return the address of a signal's handler, and its flag; None and False if not known."""
    if not _RESTARTS or os.uname().machine.startswith("mips"):
        return None, False
    action = _Action()
    try:
        failed = ctypes.PyDLL(None).sigaction(number, None, ctypes.byref(action))
    except (AttributeError, OSError):
        return None, False
    return (None, False) if failed else (action.handler, bool(action.flags & _RESTARTS))
