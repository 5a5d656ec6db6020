"""The CPU time, reads, writes and memory that mlflow-perf itself takes in this process."""

from __future__ import annotations

import math
import operator
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mlflow_perf.core.clock import read_monotonic
from mlflow_perf.core.import_watch import ImportWatch
from mlflow_perf.core.originals import atexit, gc, open_file, os, time
from mlflow_perf.core.thread_list import hide, list_threads
from mlflow_perf.core.threads import RLock, get_native_id

_LEAST_SHIFT_SEC = 0.1  # between two looks at this thread's clock it hardly advances
_WORKED_SEC = 1e-4
_NEW_SEC = 1e-3  # a thread that has used less CPU time has moved next to nothing
_LOOK_SEC = 0.005
_PAGES_PER_FAULT = 16  # at most, of a file; of other memory one
_MUCH_BYTES = 16 * 2**20
# Python 3.12 begins with some 400 frozen objects; whoever freezes has thousands.
_JOBS_FREEZE = 2_000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0

_forks = 0
"""How often Python has forked this process."""

_Moved = tuple[int, ...]
"""Bytes that were read and written, system calls that did, and bytes from and to disks."""
MOVED_NOTHING: _Moved = (0, 0, 0, 0, 0, 0)

_began: dict[int, tuple[float, _Moved]] = {}
"""Native id of a thread that works for us now → its CPU time when it began to, and what it had
moved."""

own_children: set[int] = set()
"""Processes that this one has forked to help it: they are not the job's."""

_ended_sec = 0.0
_ended_moved = MOVED_NOTHING
_caused_switches = 0
_guard = RLock()
_brought_bytes = _brought_mapped_bytes = 0  # the latter of files, such as the code of libraries
_bringing: dict[int, int] = {}
"""Native id of a thread that adds memory for us now → its page faults at the last look."""
_before: tuple[tuple[int, int], int, float] = ((0, 0), 0, 0.0)
"""Memory of this process at the last look, and what of it is of files; its page faults, and the
job's CPU time, before that."""
_looked = -math.inf
_threads_before: frozenset[threading.Thread] = frozenset()
_brought_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
# MLflow starts those of its telemetry whenever it likes, in a process that only we use it in, too.
_TELEMETRY = ("MLflowTelemetryConsumer", "GetTelemetryConfig")


@contextmanager
def as_own() -> Iterator[None]:
    """Count this thread's work as that of mlflow-perf; nested uses change nothing."""
    global _ended_moved, _ended_sec  # noqa: PLW0603 - one account for the process
    thread = get_native_id()
    if thread in _began:
        yield
        return
    used = time.thread_time()
    # To read it, a thread of ours that is new would let the job's go first.
    _began[thread] = used, _read_moved(thread) if used > _NEW_SEC else MOVED_NOTHING
    try:
        yield
    finally:
        with _guard:
            _ended_moved = own_moved(thread)
            _ended_sec += time.thread_time() - _began.pop(thread)[0]


@contextmanager
def bring() -> Iterator[None]:
    """Count this thread's work as that of mlflow-perf, and the memory that it adds.

    Importing MLflow adds 200 MB to a job, and a thread of its telemetry. Where other threads work
    meanwhile, memory belongs to the thread whose page faults added it.
    """
    global _before, _threads_before  # noqa: PLW0603 - one account for the process
    thread = get_native_id()
    if thread in _bringing:
        yield
        return
    with as_own():
        with _guard:
            is_first = not _bringing
            if is_first:
                faults, worked_sec = _read_work()
                _before = _read_memory(), faults, worked_sec
                _threads_before = frozenset(_list_threads())
            else:
                _add_growth()
            _bringing[thread] = _read_faults(f"task/{thread}/")
        if is_first:
            _imports.start()
        try:
            yield
        finally:
            with _guard:
                _add_growth()
                _bringing.pop(thread, None)
            if not _bringing:
                _imports.stop()
                for one in _list_threads() - _threads_before:
                    # The library's module is that of the thread's target, or that of its class.
                    modules = (getattr(one, "_target", None), type(one))
                    if any(_imports.has_loaded(str(getattr(m, "__module__", ""))) for m in modules):
                        _brought_threads.add(one)
                        hide(one)


def _list_threads() -> set[threading.Thread]:
    """Return Python's threads; native ones, such as BLAS's, are left out."""
    # A thread of eventlet's copy of `threading` has no number.
    return {one for one in list_threads() if getattr(one, "native_id", None) is not None}


def _read_cpu_sec(thread: int) -> float | None:
    try:
        # The kernel's encoding of a thread's clock, as pthread_getcpuclockid makes it.
        seconds = time.clock_gettime((~thread << 3) | 6)
        own = time.clock_gettime((~get_native_id() << 3) | 6)
    except (AttributeError, OSError, OverflowError):
        return None  # it has just ended, or this is another platform
    # A library that fakes the time of day (libfaketime) shifts these clocks, but not this one.
    shift = own - time.thread_time()
    return seconds - shift if abs(shift) > _LEAST_SHIFT_SEC else seconds


def _read_faults(of: str = "") -> int:
    """Return the page faults of this process, or of a thread; 0 where they are unknown."""
    try:
        with open_file(f"/proc/self/{of}stat", "rb", 0) as file:
            # A thread may have any name; after it come state, five ids, flags, and the faults.
            return int(file.read().rpartition(b")")[2].split()[7])
    except (OSError, IndexError, ValueError):
        return 0


def _read_work() -> tuple[int, float]:
    """Return the page faults of this process, and the CPU time of the job in it."""
    return _read_faults(), time.process_time() - own_cpu_sec()


def _add_growth() -> None:
    """Count our part of the memory that was added since the last look.

    A new page is of the thread whose fault added it. A huge page of the job's is one fault, too: so
    ours is at most what our faults can have added, where others had any. What is given back is the
    job's, if it has worked.

    The job goes on while its memory is read. So its work counts from before one reading until after
    the next: what it gives back meanwhile is in one of the two.
    """
    global _brought_bytes, _brought_mapped_bytes, _before, _looked  # noqa: PLW0603 - one account
    with _guard:
        (memory, mapped), faults, worked_sec = _before
        begin = _read_work()
        _before = _read_memory(), *begin
        end = _read_work()
        _looked = read_monotonic()
        ours = 0
        for number, before in _bringing.items():
            _bringing[number] = max(before, _read_faults(f"task/{number}/"))
            ours += _bringing[number] - before
        theirs = max(0, end[0] - faults - ours)
        growth = float(_before[0][0] - memory)
        mapped_growth = max(0, _before[0][1] - mapped)
        if growth < 0:
            if end[1] - worked_sec > _WORKED_SEC:
                growth = float(ours * _PAGE_BYTES)
        elif theirs:
            most = _PAGES_PER_FAULT * ours * _PAGE_BYTES
            growth = min(growth * ours / (ours + theirs), most)
        _brought_bytes += int(growth)
        if ours:
            _brought_mapped_bytes += mapped_growth * ours // (ours + theirs)


def _look_again() -> None:
    """Count what was added so far, where the last look was some time ago."""
    if read_monotonic() - _looked > _LOOK_SEC:
        _add_growth()


def brought_bytes() -> int:
    """Return the memory that mlflow-perf has added to this process so far.

    What was loaded for us and is then imported by the job too is the job's.
    """
    if _bringing:
        _add_growth()
    return max(0, _brought_bytes - _imports.used_bytes())


def forked_bytes() -> int:
    """Return what a fork of this process gets of the memory that mlflow-perf has added to it.

    The kernel copies no pages of mapped files.
    """
    return max(0, brought_bytes() - _brought_mapped_bytes)


def own_memory_bytes() -> int:
    """Return the resident memory of this process; 0 where it is unknown."""
    return _read_memory()[0]


def _read_memory() -> tuple[int, int]:
    """Return this process's resident bytes, and what of them is of files or shared memory."""
    try:
        with open_file("/proc/self/statm", "rb", 0) as file:
            resident, mapped = file.read().split()[1:3]
            return int(resident) * _PAGE_BYTES, int(mapped) * _PAGE_BYTES
    except (OSError, ValueError):
        return 0, 0


def note_switches(count: int) -> None:
    """Count how often our threads gave up their CPU, and the job's threads because of ours."""
    global _caused_switches  # noqa: PLW0603 - one account for the process
    _caused_switches += count


def caused_switches() -> int:
    """Return how often threads of this process gave up their CPU because of us, if known."""
    return _caused_switches


_imports = ImportWatch(lambda: get_native_id() in _began, own_memory_bytes, _look_again)


def call_when_imported(package: str, call: Callable[[], object]) -> None:
    """Make a call when the job first uses a package that is being loaded for mlflow-perf."""
    _imports.call_when_imported(package, call)


def is_unused(module: str) -> bool:
    """Return whether a module's package was loaded for mlflow-perf, and the job does not use it."""
    return _imports.is_unused(module)


def list_unused() -> set[str]:
    """Return the packages that were loaded for us, and that the job does not use."""
    return _imports.list_unused()


def use_again(module: str, *, is_own: bool) -> set[str]:
    """Note that a module is imported that was taken out of `sys.modules`.

    Args:
        module: Its name.
        is_own: Whether a call of ours imports it, and not the job.

    Returns:
        Its package, and the packages that this one imports.
    """
    return _imports.use_again(module, is_own=is_own)


def working_thread_ids() -> set[int]:
    """Return the native ids of the threads that work for mlflow-perf now."""
    return set(_began)


def brought_thread_ids() -> set[int]:
    """Return the native ids of the threads of libraries that were loaded for mlflow-perf."""
    brought = [*_brought_threads, *filter(is_brought, list_threads())]
    ids = (getattr(thread, "native_id", None) for thread in brought)
    return {number for number in ids if number is not None}


def is_brought(thread: threading.Thread | None) -> bool:
    """Return whether a thread is of MLflow's telemetry, or of a library that was loaded for us."""
    if thread is None:
        return False
    return thread in _brought_threads or str(getattr(thread, "name", "")).startswith(_TELEMETRY)


def is_own_work() -> bool:
    """Return whether this thread works for mlflow-perf at this moment."""
    return get_native_id() in _began


def own_cpu_sec() -> float:
    """Return the CPU time that mlflow-perf has used in this process so far."""
    with _guard:
        used, began = _ended_sec, dict(_began)
    for thread, (before, _) in began.items():
        used += max(0.0, (_read_cpu_sec(thread) or before) - before)
    return used


def own_moved(*threads: int) -> _Moved:
    """Return what mlflow-perf has moved so far, in the order of `/proc/self/io`.

    Args:
        threads: Native ids of those to count beside what has ended; default: all that work now.
    """
    with _guard:  # none of them ends meanwhile
        moved = _ended_moved
        for thread in threads or tuple(_began):
            before, now = _began[thread][1], _read_moved(thread)
            if before and now:
                added = (max(0, end - begin) for end, begin in zip(now, before, strict=True))
                moved = tuple(map(operator.add, moved, added))
        return moved


def _read_moved(thread: int) -> _Moved:
    """Return what a thread has moved since its start; nothing where that is not known."""
    try:
        with open_file(f"/proc/self/task/{thread}/io", "rb", 0) as file:
            found = tuple(map(int, file.read().split()[1:12:2]))
    except (OSError, ValueError):
        return ()
    return found if len(found) == len(MOVED_NOTHING) else ()


def add_own_cpu(seconds: float) -> None:
    """Count the CPU time of another process as that of mlflow-perf, which started it."""
    global _ended_sec  # noqa: PLW0603 - one account for the process
    with _guard:
        _ended_sec += seconds


def _forget_in_child() -> None:
    # A forked child has none of its parent's threads.
    global _ended_moved, _ended_sec, _guard
    _began.clear()
    _bringing.clear()
    _ended_sec, _ended_moved, _guard = 0.0, MOVED_NOTHING, RLock()
    # A collection writes to each object that it visits, and so copies its page: 80 MB of MLflow's
    # for each worker of a pool. The last collection, at the interpreter's end, visits all.
    has_job_frozen = gc.get_freeze_count() >= _JOBS_FREEZE
    if _brought_bytes >= _MUCH_BYTES and not has_job_frozen:
        gc.freeze()
        atexit.register(gc.unfreeze)


def count_forks() -> int:
    """Return how often Python has forked this process; what starts a program at once is none."""
    return _forks


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - of the process
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child, after_in_parent=_count_fork)
