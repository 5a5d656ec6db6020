"""The signals that end a process: noticed at once, in a thread of its own. Imports nothing of ours.

Python runs a signal's handler in the main thread, between two of its instructions: not while that
thread sits in native code. So a thread waits on the descriptor to which the interpreter's own
handler, in C, writes the number of each signal. The job's handlers, and what a signal does where
there is none, stay as they were.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["SignalWatch"]

_ENDING = (
    "SIGTERM",
    "SIGHUP",
)  # what asks a job to end; SIGINT is a KeyboardInterrupt, noticed too
_STOP, _MARK = 254, 255  # no signals: words from our own threads
# A job whose own handler ends it does so at once; one that takes longer may not live to its end.
_PATIENCE_SEC = 1.0
# A job with a signal a millisecond, as from a profiler's timer, wakes us this rarely.
_REST_SEC = 0.05

_log = logging.getLogger(__name__)
_set_wakeup_fd = signal.set_wakeup_fd
_armed: SignalWatch | None = None


class SignalWatch:
    """Watches for the signals that end this process, from `arm` to `disarm`.

    Args:
        on_fatal: Called with a signal that is about to end the process, as nobody handles it; the
            process ends of this signal when the call returns.
        on_handled: Called with a signal that the job handles itself, if the job has not disarmed
            the watch a second later.

    Both are called in the watch's thread. `received` holds the signals that came.
    """

    def __init__(
        self, on_fatal: Callable[[int], object], on_handled: Callable[[int], object]
    ) -> None:
        self.received: list[int] = []
        self._on_fatal = on_fatal
        self._on_handled = on_handled
        self._handler = self._handle  # one object, to be known again
        self._previous: dict[int, Any] = {}
        self._pipe = (-1, -1)
        self._outer: tuple[int, os.stat_result] | None = None
        self._set_outer = self._keep_wakeup_fd  # one object, to be known again
        self._over = threading.Event()
        self._marked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mlflow-perf-signals", daemon=True)

    @property
    def armed(self) -> bool:
        """Whether the watch is on, in this process."""
        return _armed is self

    def arm(self) -> None:
        """Start to watch; does nothing outside the main thread, where no handler can be set."""
        global _armed  # noqa: PLW0603 - a process has one set of handlers
        if (
            sys.platform == "win32"
            or _armed is not None
            or threading.current_thread() is not threading.main_thread()
        ):
            return
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        try:
            self._outer = _identity(_set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False))
            self._thread.start()
        except (ValueError, RuntimeError, OSError):  # a subinterpreter; no thread to be had
            _log.debug("Signals are not watched:", exc_info=True)
            self._close()
            return
        _armed = self
        signal.set_wakeup_fd = self._set_outer
        # Ignored, as under nohup, or handled by native code (None): left alone.
        self._take(lambda handler: handler not in (None, signal.SIG_IGN))

    def disarm(self) -> None:
        """Give back the handlers and end the thread; waits while a signal is being dealt with."""
        global _armed  # noqa: PLW0603 - as in arm
        if not self.armed:
            return
        self._over.set()
        self._write(_STOP)
        self._thread.join()
        _armed = None
        if self._restore():
            self._close()

    def settle(self) -> None:
        """Return when each signal that came before this call stands in `received`."""
        if self.armed:
            self._over.set()
            self._write(_MARK)
            self._marked.wait(_PATIENCE_SEC)

    def _keep_wakeup_fd(self, fd: int, *, warn_on_full_buffer: bool = True) -> int:
        """Stand in for `signal.set_wakeup_fd` while the watch is on.

        An event loop that is told to handle a signal sets a descriptor of its own, and ours would
        hear no signal any more: its is noted instead, and written to with each signal that comes.

        Returns:
            The descriptor that it would have found without us; -1 for none.
        """
        if not self.armed:
            return _set_wakeup_fd(fd, warn_on_full_buffer=warn_on_full_buffer)
        before = self._outer_fd()
        ours = _set_wakeup_fd(fd, warn_on_full_buffer=warn_on_full_buffer)  # who is wrong is told
        _set_wakeup_fd(ours, warn_on_full_buffer=False)
        self._outer = _identity(fd)
        # A loop that goes leaves its signals without a handler.
        self._take(lambda handler: handler is signal.SIG_DFL)
        return before

    def _take(self, may: Callable[[Any], bool]) -> None:
        """Set our handler for each ending signal whose present one says that we may."""
        for number in (getattr(signal, name) for name in _ENDING):
            if may(signal.getsignal(number)):
                self._previous[number] = signal.signal(number, self._handler)

    def _restore(self) -> bool:
        """Set the handlers that were there before; outside the main thread that cannot be done.

        There ours stay and do as the ones before; and the interpreter still writes to the pipe.
        """
        if signal.set_wakeup_fd is self._set_outer:
            signal.set_wakeup_fd = _set_wakeup_fd
        try:
            for number, previous in self._previous.items():
                if signal.getsignal(number) is self._handler:
                    signal.signal(number, previous)
            present = _set_wakeup_fd(-1)
            wanted = self._outer_fd() if present == self._pipe[1] else present
            if wanted >= 0:
                _set_wakeup_fd(wanted, warn_on_full_buffer=False)
        except ValueError:
            return False
        return True

    def _outer_fd(self) -> int:
        """Return the descriptor that was to be written to before ours, while it is still that."""
        if self._outer is None:
            return -1
        number, then = self._outer
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(number), then):
                return number
        return -1

    def _close(self) -> None:
        for handle in self._pipe:
            with contextlib.suppress(OSError):
                os.close(handle)

    def _write(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.write(self._pipe[1], bytes([number]))

    def _handle(self, number: int, frame: Any) -> None:
        """Note the signal, wake the thread if the interpreter could not, and call the job's own."""
        previous = self._previous.get(number, signal.SIG_DFL)
        if self.armed:
            self.received.append(number)
            if _wakeup_fd_is_ours(self._pipe[1]) is False:
                self._write(number)
        elif previous is signal.SIG_DFL:
            _die(number)
        if callable(previous):
            previous(number, frame)

    def _run(self) -> None:
        done: set[int] = set()
        while True:
            data = os.read(self._pipe[0], 4096)
            # Before an event loop hears of it: one that ends by it gives its handler back at once.
            fatal = {number for number in {*data} & {*_watched()} if self._is_fatal(number)}
            self._pass_on(data)
            for number in dict.fromkeys(data):
                if number == _STOP:
                    return
                if number == _MARK:
                    self._marked.set()
                elif number not in done and number in _watched():
                    done.add(number)
                    self.received.append(number)
                    self._deal_with(number, fatal=number in fatal)
            self._over.wait(_REST_SEC)

    def _pass_on(self, data: bytes) -> None:
        outer = self._outer_fd()
        signals = bytes(n for n in data if n not in (_STOP, _MARK))
        if outer >= 0 and signals:
            with contextlib.suppress(OSError):
                os.write(outer, signals)

    def _is_fatal(self, number: int) -> bool:
        ours = signal.getsignal(number) is self._handler
        # The kernel lets no signal end the first process of a container that does not handle it.
        return ours and self._previous.get(number) is signal.SIG_DFL and os.getpid() != 1

    def _deal_with(self, number: int, *, fatal: bool) -> None:
        try:
            if fatal:
                self._on_fatal(number)
            elif not self._over.wait(_PATIENCE_SEC):
                self._on_handled(number)
        # The edge: whatever fails here, the signal does what it would have done.
        except Exception:  # noqa: BLE001
            _log.warning("A signal's report could not be made.", exc_info=True)
        if fatal:
            _die(number)

    def leave_child(self) -> None:
        """Take the watch out of a forked child, whose signals are its own."""
        self._restore()
        self._close()


def _watched() -> list[int]:
    return [getattr(signal, name) for name in (*_ENDING, "SIGINT")]


def _identity(number: int) -> tuple[int, os.stat_result] | None:
    if number < 0:
        return None
    facts = os.fstat(number)
    # Only what is a socket or a pipe is an event loop's.
    return (number, facts) if stat.S_ISSOCK(facts.st_mode) or stat.S_ISFIFO(facts.st_mode) else None


def _wakeup_fd_is_ours(number: int) -> bool | None:
    """Tell whether the interpreter writes signals to a descriptor; None where it does not say."""
    try:
        present = _set_wakeup_fd(-1)
        if present >= 0:
            _set_wakeup_fd(present, warn_on_full_buffer=False)
    except (ValueError, OSError):
        return None
    return present == number


def _die(number: int) -> None:
    """End the process of a signal, from any thread, as if it had never been caught."""
    import ctypes

    with contextlib.suppress(AttributeError):  # another Python than CPython
        reset = ctypes.pythonapi.PyOS_setsig
        reset.restype, reset.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
        reset(number, None)
        os.kill(os.getpid(), number)
        time.sleep(_PATIENCE_SEC)
    os._exit(128 + number)


# A child between its birth and its own set of handlers must not write into its parent's pipe: the
# parent would take the child's signal for its own. So none is delivered there meanwhile.
_masks: dict[int, Any] = {}


def _before_fork() -> None:
    if _armed is not None:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _watched())
        _masks[threading.get_ident()] = mask


def _after_fork() -> None:
    mask = _masks.pop(threading.get_ident(), None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    global _armed
    watch, _armed = _armed, None
    if watch is not None:
        watch.leave_child()
    _after_fork()
    _masks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
