"""Threads, locks and events of mlflow-perf, unaffected by patches that the job applies to its own.

A thread of ours blocks all signals, so that the job's threads get theirs. It is a thread of the
kernel even where gevent or eventlet has replaced Python's by coroutines, because a coroutine that
waits for a descriptor would stop the whole job.
"""

from __future__ import annotations

# `signal` itself makes an enum of each number, which takes 0.2 ms for a thread.
import _signal  # type: ignore[import-not-found]  # typeshed does not have it
import contextlib
import math
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.clock import read_monotonic
from mlflow_perf.core.originals import is_native, load_native, open_file, os
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.thread_list import hide, own_idents

_log = get_logger(__name__)


_native = load_native("_thread", "start_new_thread")
_start_native: Callable[[Callable[..., object], tuple[Any, ...]], int] = _native.start_new_thread
Lock: Callable[[], threading.Lock] = _native.allocate_lock
"""Returns a new lock of the interpreter."""
RLock: Callable[[], threading.RLock] = _native.RLock
"""Returns a new reentrant lock of the interpreter."""

get_ident: Callable[[], int] = _native.get_ident
"""Returns the ident of the interpreter's thread, also within a coroutine of gevent."""

get_native_id: Callable[[], int] = _native.get_native_id
"""Returns the kernel's number of this thread."""


def _with_names(function: Any, **names: object) -> Any:
    """Return a function of `threading` that finds other objects under names of its module.

    One that a library has put in its place is returned as it is.
    """
    module = vars(threading)
    if getattr(function, "__globals__", None) is not module or function.__closure__ is not None:
        return function
    changed = {**module, **names}
    return FunctionType(function.__code__, changed, function.__name__, function.__defaults__)


# A job that keeps account of its threads puts a class of its own in the place of Python's.
_PythonThread: Any = threading._MainThread.__base__  # type: ignore[attr-defined]  # noqa: SLF001


def _find_method(name: str) -> Any:
    """Return a method of Python's threads, also where a library has put one around it.

    Such a one notes which threads begin, and a job may wait for them all.
    """
    found = getattr(_PythonThread, name)
    if getattr(found, "__globals__", None) is vars(threading):
        return found
    with contextlib.suppress(Exception):  # an archive may hold Python's modules in another way
        code: Any = threading.__spec__.loader.get_code("threading")  # type: ignore[union-attr]
        for part in ("Thread", name):
            code = next(one for one in code.co_consts if getattr(one, "co_name", "") == part)
        found = FunctionType(code, vars(threading), name)
        found.__kwdefaults__ = {"daemon": None, "context": None}  # since Python 3.14 it has both
    return found


# As they are now: a test of the job may replace those of all threads, and count the calls.
_init = _find_method("__init__")
_start = _find_method("start")
_bootstrap_inner = _find_method("_bootstrap_inner")
_is_alive = _find_method("is_alive")
_join = _with_names(_find_method("join"), current_thread=bool)  # ours has asked already

_LOOK_SEC = 0.05
_SLICE_SEC = 0.5  # the longest wait of a thread that may be the job's main thread
_STACK_BYTES = 2 << 20  # an import of MLflow needs more than 64 KiB
KERNEL_NAME = b"mlflow-perf"
"""The name that the kernel shows for a thread of ours."""

# A fault of the thread itself raises the other signals, which `faulthandler` handles.
_FAULTS = {getattr(_signal, name, 0) for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL")}
_BLOCKED = _signal.valid_signals() - _FAULTS

# Type checkers see `threading.Event`; at run time the class does not depend on that module.
if TYPE_CHECKING:
    _EventBase = threading.Event
    _ThreadBase = threading.Thread
else:
    _EventBase = object
    _ThreadBase = _PythonThread


class Event(_EventBase):
    """A flag that threads can wait for, made of native locks alone."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: deque[threading.Lock] = deque()

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag and wake all who wait for it."""
        self._is_set = True
        with contextlib.suppress(IndexError):  # another thread may have taken the last one
            while self._waiting:
                self._waiting.popleft().release()

    def clear(self) -> None:
        """Clear the flag."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set or the time in seconds is over; return whether it was set."""
        if self._is_set:
            return True
        gate = Lock()
        gate.acquire()
        self._waiting.append(gate)
        end = math.inf if timeout is None else read_monotonic() + timeout
        # Python handles a signal that comes just before such a call only when the call ends.
        longest = threading.TIMEOUT_MAX if is_own_thread(get_ident()) else _SLICE_SEC
        # `set` may have come since the first look, and missed this gate.
        is_woken = self.is_set()
        while not is_woken and (left := max(0.0, end - read_monotonic())):
            is_woken = gate.acquire(timeout=min(left, longest))
        with contextlib.suppress(ValueError):  # `set` has taken it
            self._waiting.remove(gate)
        return self.is_set()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block all signals in this thread; a thread that it starts inherits that."""
    if sys.platform == "win32":
        yield
        return
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    try:
        try:
            # This call blocks, and then raises what a signal handler of the job raises.
            _signal.pthread_sigmask(_signal.SIG_BLOCK, _BLOCKED)
            yield
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
    finally:  # again: a handler may run here, too, for a signal that came to another thread
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _enough_stack() -> Iterator[None]:
    """Let a new thread have a usual stack where the job has chosen a small one for its own."""
    chosen = _native.stack_size()  # this sets it, too: to the default
    if not 0 < chosen < _STACK_BYTES:
        _native.stack_size(chosen)
        yield
        return
    _native.stack_size(_STACK_BYTES)
    try:
        yield
    finally:
        _native.stack_size(chosen)


def _show_as_ours() -> None:
    """Give this thread a name in the kernel, by which the sampler of another process knows it."""
    with contextlib.suppress(Exception), open_file("/proc/thread-self/comm", "wb", 0) as file:
        file.write(KERNEL_NAME)


class _Started(Event):
    """Reports that a thread has begun, or that memory ran out before it could begin.

    In that case Python itself would wait for ever.
    """

    def __init__(self, thread: threading.Thread) -> None:
        super().__init__()
        self._thread = weakref.ref(thread)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the thread has begun.

        Raises:
            RuntimeError: When it never will.
        """
        thread = self._thread()
        assert thread is not None  # it is being started
        # From here on only the native thread has this object, and drops it at its end.
        bootstrap = weakref.ref(thread.__dict__.pop("_bootstrap"))
        while not super().wait(_LOOK_SEC):
            if bootstrap() is None and not self.is_set():
                threading._limbo.pop(thread, None)  # type: ignore[attr-defined]  # noqa: SLF001
                raise RuntimeError("can't start new thread: no memory")
        return True

    def set(self) -> None:
        """Name the thread for the kernel, and let its starter go on: the thread itself calls this.

        The starter must not do it: while it has the file open where the job has closed its standard
        output, `standard_numbers_taken` in the thread would take that number for the job's.
        """
        _show_as_ours()
        super().set()

    def _at_fork_reinit(self) -> None:
        """Forget who waits: Python calls this in a forked child."""
        self._waiting.clear()


def is_own_thread(ident: int) -> bool:
    """Return whether a thread is one of ours, also where Python's list of threads is replaced."""
    # A forked child has none of its parent's threads, and gives their idents to others.
    return own_idents.get(ident) == os.getpid()


def call_later(function: Callable[[], object], wait_sec: float) -> None:
    """Call a function in a thread of ours that first waits in C, where it has no stack.

    It costs 0.4 ms, about half of what a `Thread` does: for a forked child that may end at once.

    Raises:
        RuntimeError: When the system has no room for one more thread.
    """
    nap = Lock()
    nap.acquire()

    def call() -> None:
        Thread(function, name="mlflow-perf-later")._run_natively()  # noqa: SLF001

    steps: list[Any] = [partial(nap.acquire, True, wait_sec), partial(call)]
    with _signals_blocked(), _enough_stack():
        _start_native(list, (map(partial.__call__, steps),))


def _close_hub() -> None:
    """Close the descriptors of this thread's event loop.

    gevent makes one for each thread that uses what it has replaced, and leaves it to the thread.
    """
    gevent: Any = sys.modules.get("gevent")
    find = getattr(sys.modules.get("gevent._hub_local"), "get_hub_if_exists", None)
    with contextlib.suppress(Exception):  # it may change
        if find is not None and (hub := find()) is not None:
            gevent.sleep(0.001)  # what `os.close` was called for, it closes after its next round
            hub.destroy(destroy_loop=True)


def _say_fault(thread: threading.Thread) -> None:
    error = sys.exc_info()[1]
    _log.warning("The thread %s has ended: %s: %s", thread.name, type(error).__name__, error)


class Thread(_ThreadBase):
    """A daemon thread that takes no signal of the job and is no coroutine.

    Args:
        target: What it does; default: `work` of a subclass.
        name: Its name.
    """

    pydev_do_not_trace = True  # the debugger of VS Code and PyCharm asks for it

    def __init__(self, target: Callable[[], object] | None = None, *, name: str) -> None:
        _init(self, None, None, name, (), None, daemon=True)
        self._does = target
        self._native_pid: int | None = None
        self._runs_in: int | None = None
        # Python would call `threading.excepthook`, with which a job may end itself.
        self._invoke_excepthook = _say_fault
        self._ended = Event()

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: When the system has no room for one more.
        """
        names = ("_start_joinable_thread", "_start_new_thread")  # since Python 3.13, and before
        begin = next((getattr(threading, n) for n in names if hasattr(threading, n)), None)
        with _signals_blocked(), _enough_stack():
            if begin is None or is_native(begin):
                hide(self)
                self._started = _Started(self)
                self.__dict__["_bootstrap"] = self._bootstrap  # type: ignore[attr-defined]
                _start(self)
            else:
                self._native_pid = os.getpid()
                _start_native(self._run_natively, ())

    def _bootstrap_inner(self) -> None:
        """Begin without the job's `threading.settrace` and `threading.setprofile`.

        A debugger warns of others that call its function; memray's file is broken by a function
        that was taken back, and by one that begins in a forked child.
        """
        _with_names(_bootstrap_inner, _trace_hook=None, _profile_hook=None)(self)

    def run(self) -> None:
        """Do the work, and be known as ours meanwhile."""
        self._runs_in = get_ident()
        own_idents[self._runs_in] = os.getpid()
        try:
            self.work()
        finally:
            self._does = None  # it may hold this thread
            _close_hub()
            own_idents.pop(self._runs_in, None)

    def work(self) -> None:
        """Call the target; a subclass may do something else."""
        if self._does is not None:
            self._does()

    @property
    def was_started(self) -> bool:
        """Whether `start` was called, in this process or its parent."""
        return self.ident is not None or self._native_pid is not None

    @property
    def is_caller(self) -> bool:
        """Whether it is the thread that asks."""
        return self._runs_in == get_ident()

    def _delete(self) -> None:
        """Leave Python's list of threads; the base class asks a function that may be patched."""
        threading._active.pop(self.ident, None)  # type: ignore[attr-defined]  # noqa: SLF001

    def _run_natively(self) -> None:
        _show_as_ours()
        try:
            self.run()
        except Exception:  # noqa: BLE001 - nobody is above it
            _say_fault(self)
        finally:
            self._ended.set()

    def is_alive(self) -> bool:
        """Return whether the thread runs, in this process."""
        if self._native_pid is None:
            return bool(_is_alive(self))
        return self._native_pid == os.getpid() and not self._ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, or the time in seconds is over.

        For a thread that was not started, or whose start an error cut short, or for the caller
        itself this does nothing.
        """
        if not self.is_alive() or self.is_caller:
            return
        if self._native_pid is None:
            _join(self, timeout)
        else:
            self._ended.wait(timeout)
