"""Notices the signals that end a process at once, in a thread of its own.

Python runs a signal's handler in the main thread, between two of its instructions, and so not while
that thread runs native code. The interpreter's own handler, in C, writes the number of each signal
to a descriptor; a thread waits on that descriptor. The job's handlers, and what a signal does
without a handler, stay as they were; the job does not see ours.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from mlflow_perf.core.clock import read_monotonic
from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.originals import os
from mlflow_perf.core.own_cost import as_own
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.threads import Event, Thread
from mlflow_perf.core.uris import first_line
from mlflow_perf.session.aside import Aside
from mlflow_perf.session.interrupted import has_interrupted_us, send_again, wait_for_us
from mlflow_perf.session.own_handlers import OwnHandlers
from mlflow_perf.session.signal_channel import REST_SEC, Pace, SignalChannel, identify

_ENDING = ("SIGTERM", "SIGHUP")  # they ask a job to end; SIGINT is noticed too
_TAKEN, _STOP, _MARK = 253, 254, 255  # not signals, but messages from our own code
# A job whose own handler ends it does so at once. A job that takes longer may be killed first.
_PATIENCE_SEC = 1.0
_LONGEST_END_SEC = 60.0
_MOST_REPEATS = 50  # a second: then it is a long wait of ours, with no lock held
_GRACE_SEC = 20.0  # as long as a report may take then

_log = get_logger(__name__)
_set_wakeup_fd = signal.set_wakeup_fd
_armed: SignalWatch | None = None


class SignalWatch:
    """Watches for the signals that end this process, from `arm` to `disarm`.

    Args:
        on_fatal: Called with a signal that the job does not handle. When the call returns, the
            signal ends the process.
        on_handled: Called with a signal that the job handles itself, if the watch is still armed
            a second later.

    Both are called in the watch's thread. A process has one watch that is on; another one that is
    armed meanwhile follows it.

    Attributes:
        received: The signals that came.
    """

    def __init__(
        self, on_fatal: Callable[[int], object], on_handled: Callable[[int], object]
    ) -> None:
        self.received: list[int] = []
        self._on_fatal = on_fatal
        self._on_handled = on_handled
        numbers = tuple(getattr(signal, name) for name in _ENDING if hasattr(signal, name))
        self._handlers = OwnHandlers(numbers, self._handle, lambda: self._write(_TAKEN))
        self._fatal: int | None = None  # what the main thread is to end of
        self._repeats = 0
        self._pid = os.getpid()
        self._channel: SignalChannel | None = None
        self._outer: tuple[int, os.stat_result] | None = None
        self._set_outer = self._keep_wakeup_fd  # one object, so that `is` finds it again
        self._is_set_up = self._is_deaf = False
        self._present = -1  # the descriptor that `_restore` has taken out of the interpreter
        self._pending: Any = None
        self._leader: SignalWatch | None = None
        self._followers: list[SignalWatch] = []
        self._over = Event()
        self._marked, self._held = Event(), Event()
        self._thread = Thread(self._run, name="mlflow-perf-signals")
        self._telling = Aside("mlflow-perf-signal")

    @property
    def armed(self) -> bool:
        """Whether this watch is on in this process."""
        # A child of a native fork() has a copy of this, and of nothing that makes it work.
        return _armed is self and self._pid == os.getpid()

    @property
    def is_watching(self) -> bool:
        """Whether this watch, or one that it follows, is on in this process."""
        return self.armed or (self._leader is not None and self._leader.armed)

    def arm(self) -> None:
        """Start to watch; only the main thread can set handlers, so elsewhere this does nothing."""
        global _armed
        if _armed is not None and _armed.armed and _armed is not self:
            _armed._followers.append(self)  # noqa: SLF001 - another object of this class
            self._leader, self.received = _armed, _armed.received
        if (
            sys.platform == "win32"
            or _armed is not None
            or threading.current_thread() is not threading.main_thread()
        ):
            return
        # First: a handler of the job may raise at any line below, and `disarm` then takes all back.
        _armed, self._is_set_up = self, True
        try:
            self._channel = SignalChannel()
            self._thread.start()
            writer = self._channel.writer.number
            self._outer = identify(_set_wakeup_fd(writer, warn_on_full_buffer=False))
        # A subinterpreter, or no more descriptors or threads.
        except (ValueError, RuntimeError, OSError) as error:
            if is_from_handler(error):
                raise
            _log.debug("Signals are not watched:", exc_info=True)
            _armed, self._is_set_up = None, False
            self._close()
            return
        signal.set_wakeup_fd = self._set_outer
        # A signal that is ignored, as under nohup, or handled by native code (None) is left alone.
        self._handlers.hide()
        self._handlers.take(lambda handler: handler not in (None, signal.SIG_IGN))

    def disarm(self) -> None:
        """Restore the handlers and end the thread, after it has dealt with a present signal."""
        try:
            self._take_back()
        finally:
            self._take_back()  # what is left to do if a handler of the job has raised in there

    def _take_back(self) -> None:
        global _armed  # noqa: PLW0603 - as in arm
        if self._leader is not None and self._leader.armed:
            self._leader.dismiss(self)
        if not self._is_set_up or self._pid != os.getpid():
            return
        self._over.set()
        self._held.set()
        self._write(_STOP)
        self._thread.join(_LONGEST_END_SEC)
        self._telling.wait(_LONGEST_END_SEC)
        _armed = None
        if self._restore():
            self._close()
        self._is_set_up = False
        if self._fatal is not None:  # it came when the thread no longer listened
            _die(self._fatal)

    def dismiss(self, follower: SignalWatch) -> None:
        """Let a watch no longer follow this one."""
        self._followers = [watch for watch in self._followers if watch is not follower]

    def settle(self) -> None:
        """Wait until `received` has each signal that came before this call."""
        if self.armed:
            self._over.set()
            self._write(_MARK)
            self._marked.wait(_PATIENCE_SEC)

    def _keep_wakeup_fd(self, fd: int, *, warn_on_full_buffer: bool = True) -> int:
        """Replace `signal.set_wakeup_fd` while the watch is on.

        An event loop that handles a signal sets a descriptor of its own, and then ours would get no
        signals. So the loop's descriptor is noted, and each signal is written to it as well.

        Returns:
            The descriptor that would have been set without us; -1 for none.
        """
        if not self.armed:
            return _set_wakeup_fd(fd, warn_on_full_buffer=warn_on_full_buffer)
        before = self._outer_fd()
        ours = _set_wakeup_fd(fd, warn_on_full_buffer=warn_on_full_buffer)  # raises if wrong
        _set_wakeup_fd(ours, warn_on_full_buffer=False)
        self._outer = identify(fd)
        # A loop that closes leaves its signals without a handler.
        self._handlers.take(lambda handler: handler == signal.SIG_DFL)
        return before

    def _restore(self) -> bool:
        """Restore the handlers from before, and return whether that was possible.

        Outside the main thread it is not. Our handlers stay then and act as the earlier ones, and
        the interpreter still writes to the pipe.
        """
        if signal.set_wakeup_fd is self._set_outer:
            signal.set_wakeup_fd = _set_wakeup_fd
        try:
            self._handlers.restore()
            # Kept, because this may be cut short and called again.
            self._present = max(self._present, _set_wakeup_fd(-1))
            is_replaced = self._present != self._writer_fd()
            wanted = self._present if is_replaced else self._outer_fd()
            if wanted >= 0:
                _set_wakeup_fd(wanted, warn_on_full_buffer=False)
            self._present = -1
        except ValueError:
            return False
        return True

    def _outer_fd(self) -> int:
        """Return the descriptor that was set before ours, if it is still the same file."""
        if self._outer is None:
            return -1
        number, then = self._outer
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(number), then):
                return number
        return -1

    def _writer_fd(self) -> int:
        return -1 if self._channel is None else self._channel.writer.number

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def _write(self, number: int) -> None:
        if self._channel is not None:
            self._channel.write(number)

    def _handle(self, number: int, is_fatal: bool) -> None:
        """Note a signal and wake the thread if the interpreter could not; end here if it is fatal.

        The job's own handler runs after this.
        """
        if self.armed:
            self.received.append(number)
            with contextlib.suppress(ValueError, OSError):  # the interpreter does not say
                present = _set_wakeup_fd(-1)
                if present >= 0:
                    _set_wakeup_fd(present, warn_on_full_buffer=False)
                if present != self._writer_fd():
                    self._write(number)
        elif is_fatal:
            _die(number)
        if is_fatal and self._is_deaf:
            self._report(number, fatal=True)
        elif is_fatal:
            is_over, self._fatal = self._over.is_set() and not self._repeats, number
            # The thread may still be busy with an earlier signal, which the job has handled.
            self._over.set()
            self._write(number)
            # Without us the signal would have ended the main thread here, so it is held. At the
            # block's end the thread waits for this one.
            if not is_over:
                if self._repeats < _MOST_REPEATS and has_interrupted_us():
                    # The thread would wait for a lock that is held here, and this for the thread.
                    self._repeats += 1
                    send_again(number)
                    return
                self._held.set()
                self._thread.join(_GRACE_SEC + _PATIENCE_SEC)
                if self._thread.is_alive():
                    _die(number)
                self._report(number, fatal=True)

    @as_own()
    def _run(self) -> None:
        done: set[int] = set()
        handled: dict[int, float] = {}  # number → until when the job may end itself of it
        taken, pace, channel = 0, Pace(), self._channel
        assert channel is not None
        while True:
            until = min(handled.values(), default=None)
            data = channel.read(until and max(0.001, until - read_monotonic()))
            now = read_monotonic()
            for number in [n for n, end in handled.items() if end <= now]:
                del handled[number]
                if not self._over.is_set():
                    # An event loop hears others meanwhile.
                    self._telling.begin(partial(self._report, number, fatal=False))
            if data is None:
                continue
            if not data:
                self._become_deaf()
                return
            new = [n for n in dict.fromkeys(data) if n in _watched() and n not in done]
            # What came before our handler was in its place was for the job's, which may have
            # restored ours since then. The main thread tells otherwise, if it runs Python's code.
            taken += data.count(_TAKEN)
            recent = data[data.rfind(_TAKEN) + 1 :] if taken == self._handlers.taken else b""
            # Before an event loop hears of the signal, because the loop may restore its handler.
            fatal = {n for n in recent if n in _watched() and self._handlers.is_fatal(n)}
            fatal |= {n for n in data if n == self._fatal}
            outer, signals = self._outer_fd(), bytes(n for n in data if n < _TAKEN)
            if outer >= 0 and signals:
                with contextlib.suppress(OSError):
                    os.write(outer, signals)
            for number in dict.fromkeys(data):
                if number == _STOP:
                    return
                if number == _MARK:
                    self._marked.set()
                elif number in new or number in fatal:
                    done.add(number)
                    self.received.append(number)
                    if number in fatal:
                        self._report(number, fatal=True)
                    else:
                        handled[number] = now + _PATIENCE_SEC
            if pace.must_rest():
                self._over.wait(REST_SEC if outer < 0 else pace.loop_rest_sec)

    def _become_deaf(self) -> None:
        """Take our descriptor out of the interpreter, because the job has closed it.

        Otherwise the numbers of signals would be written into the file that gets its number.
        """
        self._is_deaf = True
        self._marked.set()
        with contextlib.suppress(AttributeError, ImportError):  # another Python than CPython
            import ctypes

            def take_out(_: object) -> int:
                with contextlib.suppress(ValueError, OSError):
                    present = _set_wakeup_fd(-1)
                    if present not in (-1, self._writer_fd()):
                        _set_wakeup_fd(present, warn_on_full_buffer=False)
                return 0

            # `set_wakeup_fd` works in the main thread only, which makes this call very soon.
            self._pending = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(take_out)
            ctypes.pythonapi.Py_AddPendingCall(self._pending, None)

    def _report(self, number: int, *, fatal: bool) -> None:
        try:
            watches = [*self._followers, self]
            if fatal:
                wait_for_us(self._held)
            for watch in watches:  # other objects of this class
                (watch._on_fatal if fatal else watch._on_handled)(number)  # noqa: SLF001
        # Whatever fails here, the signal does what it would have done without us.
        except Exception as error:  # noqa: BLE001
            _log.warning("A signal's report could not be made: %s", first_line(error))
        if fatal:
            _die(number)

    def leave_child(self) -> None:
        """Remove the watch from a forked child, whose signals are its own."""
        self._restore()
        self._close()


def _watched() -> list[int]:
    return [getattr(signal, name) for name in (*_ENDING, "SIGINT")]


def _die(number: int) -> None:
    """End the process by a signal, from any thread, as if nobody had caught it."""
    import ctypes

    with contextlib.suppress(AttributeError):  # another Python than CPython
        reset = ctypes.pythonapi.PyOS_setsig
        reset.restype, reset.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
        reset(number, None)
        os.kill(os.getpid(), number)
        time.sleep(_PATIENCE_SEC)
    os._exit(128 + number)  # noqa: SLF001 - a function of `os` like any other


# A new child that has not restored its handlers yet must not write into its parent's pipe, because
# the parent would take the child's signal for its own. So signals are blocked during the fork.
_masks: dict[int, Any] = {}


def _block_before_fork() -> None:
    if _armed is not None:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _watched())
        _masks[threading.get_ident()] = mask


def _unblock_after_fork() -> None:
    mask = _masks.pop(threading.get_ident(), None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _leave_in_child() -> None:
    global _armed
    watch, _armed = _armed, None
    if watch is not None:
        watch.leave_child()
    _unblock_after_fork()
    _masks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_block_before_fork,
        after_in_parent=_unblock_after_fork,
        after_in_child=_leave_in_child,
    )
