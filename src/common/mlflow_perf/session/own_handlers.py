"""Handlers of ours in the places of the job's, which sees its own there.

`signal.signal` and `signal.getsignal` look up the interpreter's functions in the module `_signal`
at each call. Those are replaced as long as our handlers are set: a job that has kept the former, as
with `from signal import getsignal`, sees the same.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed does not have it
import _thread
import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

from mlflow_perf.core.originals import os
from mlflow_perf.core.restart_flag import keeping_restart

_set, _get = _signal.signal, _signal.getsignal
_interrupt = _thread.interrupt_main
_present: OwnHandlers | None = None


class OwnHandlers:
    """A handler of ours in the place of those of the job, for some signals.

    Where it stands for none (`SIG_DFL`), the job may set that again, and ours stays.

    Args:
        numbers: The signals.
        on_signal: Called in the main thread with a signal, and whether it has to end the process.
            The job's own handler, if it has one, is called then.
        on_taken: Called when our handler has come into the place of another one.

    Attributes:
        numbers: The signals.
        taken: How often `on_taken` has been called, or is about to be.
    """

    def __init__(
        self,
        numbers: tuple[int, ...],
        on_signal: Callable[[int, bool], object],
        on_taken: Callable[[], object],
    ) -> None:
        self.numbers = numbers
        self.taken = 0
        self._on_signal = on_signal
        self._on_taken = on_taken
        self._replaced: dict[int, Any] = {}
        self._pid = os.getpid()

    def __call__(self, number: int, frame: Any) -> None:
        """Handle a signal; the interpreter calls this."""
        is_fatal, replaced = self.is_fatal(number), self.find_replaced(number)
        # One that stayed below a native handler stands for those that came after it.
        ours = _present if _present is not None and _present.are_hidden else self
        ours._on_signal(number, is_fatal)  # noqa: SLF001 - another object of this class
        if callable(replaced):
            replaced(number, frame)

    @property
    def are_hidden(self) -> bool:
        """Whether these are the ones that the job does not see, in this process."""
        # A child of a native fork() has a copy, which nothing belongs to.
        return _present is self and self._pid == os.getpid()

    def find_replaced(self, number: int) -> Any:
        """Return the handler of a signal in whose place ours stands; an `int` for none."""
        return self._replaced.get(number, _signal.SIG_DFL)

    def is_fatal(self, number: int) -> bool:
        """Return whether a signal that comes now would end the process without us.

        Our handler may also be called by one of the job, as the earlier one. The kernel lets no
        unhandled signal end the first process of a container.
        """
        handler = _get(number)
        is_ours = isinstance(handler, OwnHandlers)
        return is_ours and _is_default(_show(number, handler)) and os.getpid() != 1

    def hide(self) -> None:
        """From now on let the job see what it would see without us."""
        global _present  # noqa: PLW0603 - a process has one set of handlers
        _present = self
        _signal.signal, _signal.getsignal = _set_for_job, _get_for_job
        _thread.interrupt_main = _interrupt_for_job

    def take(self, may: Callable[[Any], bool]) -> None:
        """Put our handler in the place of each one for which this is allowed; never a native one.

        Args:
            may: Returns whether a handler may be replaced: a function of the job, one of the
                integers `SIG_DFL` and `SIG_IGN`, or None for one that is not Python's.
        """
        for number in self.numbers:
            handler = _get(number)
            shown = _show(number, handler)
            if handler is not self and may(shown) and not _is_native(number):
                with keeping_restart(number):
                    self.replace(number, shown)

    def replace(self, number: int, handler: Any) -> None:
        """Put our handler in the place of one of the job; only the main thread can."""
        self._replaced[number] = handler  # first, so that `restore` always knows it
        self.taken += 1
        try:
            _set(number, self)
        finally:
            self._on_taken()

    def restore(self) -> None:
        """Put the job's handlers back, where ours are still in their places.

        Ours stays below a native one, which may hand the signal on, and acts as the job's.

        Raises:
            ValueError: Outside the main thread; ours stay then, and act as the job's.
        """
        global _present  # noqa: PLW0603 - as in hide
        if _present is self:
            _present = None
        for number, replaced in list(self._replaced.items()):
            if _get(number) is self and not _is_native(number):
                with keeping_restart(number):
                    _set(number, replaced)
        if any(isinstance(_get(number), OwnHandlers) for number in self.numbers):
            return
        if _signal.signal is _set_for_job:
            _signal.signal = _set
        if _signal.getsignal is _get_for_job:
            _signal.getsignal = _get
        if _thread.interrupt_main is _interrupt_for_job:
            _thread.interrupt_main = _interrupt


def _is_default(handler: Any) -> bool:
    return isinstance(handler, int) and handler == _signal.SIG_DFL


def _show(number: int, handler: Any) -> Any:
    """Return what the job sees in the place of a handler: never one of ours."""
    while isinstance(handler, OwnHandlers):
        handler = handler.find_replaced(number)
    return handler


@functools.wraps(_set)
def _set_for_job(number: int, handler: Any, /) -> Any:
    ours = _present
    if (
        ours is None
        or not ours.are_hidden
        or not _is_default(handler)
        or number not in ours.numbers
        or threading.current_thread() is not threading.main_thread()
    ):
        return _show(number, _set(number, handler))
    before = _get_for_job(number)
    ours.replace(number, handler)
    return before


@functools.wraps(_get)
def _get_for_job(number: int, /) -> Any:
    return _show(number, _get(number))


@functools.wraps(_interrupt)
def _interrupt_for_job(number: Any = _signal.SIGINT, /) -> None:
    # Python promises to do nothing then, and does not look at what the kernel would do.
    if not _is_default(_get_for_job(number)):
        _interrupt(number)


def _is_native(number: int) -> bool:
    """Return whether a C library has set a handler of its own, which Python does not know of."""
    handler = _get(number)
    known = (handler or None) if isinstance(handler, int) else _find_python_handler()
    return _read_address(number) != known


@functools.cache
def _find_python_handler() -> int | None:
    """Return the address of the C function by which the interpreter calls Python's handlers.

    Raises:
        ValueError: Outside the main thread, the first time.
    """
    # Only a handler that is set shows it. These signals have no meaning of their own.
    unused = range(getattr(_signal, "SIGRTMAX", 0), getattr(_signal, "SIGRTMIN", 0), -1)
    for number in (*unused, _signal.SIGURG):
        if not _read_address(number):
            try:
                _set(number, lambda *_: None)
                return _read_address(number)
            except OSError:  # valgrind keeps some for itself
                continue
            finally:
                with contextlib.suppress(OSError):
                    _set(number, _signal.SIG_DFL)
    return None


def _read_address(number: int) -> int | None:
    """Return the address of the C function that handles a signal; None for no function."""
    import ctypes

    try:
        read = ctypes.pythonapi.PyOS_getsig
    except AttributeError:  # another Python than CPython
        return None
    read.restype, read.argtypes = ctypes.c_void_p, (ctypes.c_int,)
    address: int | None = read(number)
    return address
