"""Calls a function when a module is imported for the first time.

Every Python process below a session loads this file at its start, most of them for nothing. So it
imports only what is built in: typing, logging and importlib.abc delay each start by milliseconds.
"""

from __future__ import annotations

import _imp
import _signal  # type: ignore[import-not-found]  # the part of `signal` that is built in
import _thread
import sys
from _functools import partial  # type: ignore[import-not-found]  # built in, as `time` is
from time import monotonic as _clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# Not the streams: one that the job replaces is flushed when nobody holds it any more.
SYS_AT_START: dict[str, Any] = {k: v for k, v in vars(sys).items() if type(v) is type(len)}
"""The functions that the module `sys` had before the job could replace any."""

_import_at_start, _open_at_start = __import__, open


class _Finder:
    """Finds a module through the other finders, and wraps its loader."""

    def __init__(self) -> None:
        self.wanted: dict[str, Callable[[ModuleType], None]] = {}
        self._searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a wanted module with a wrapped loader; None for all other modules."""
        if _meetings:
            _meet_in_import()
        for note in _on_search:
            note()
        if fullname not in self.wanted or self._searching:
            return None
        import importlib.util

        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.wanted[fullname])  # type: ignore[assignment]
        return spec


class _Loader:
    """Loads with the module's own loader, then calls the function."""

    def __init__(self, inner: Any, function: Callable[[ModuleType], None]) -> None:
        self._inner = inner
        self._function = function

    def create_module(self, spec: ModuleSpec) -> Any:
        """Call the module's own loader."""
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Call the module's own loader, then the function."""
        # The module sees its own loader, as it would without this finder.
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        _call_safely(self._function, module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _call_safely(function: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        function(module)
    except Exception:
        # The import must succeed, whatever happens in the function.
        import logging

        logger = logging.getLogger("mlflow_perf.integrations")
        logger.warning("mlflow-perf: %s cannot be followed.", module.__name__, exc_info=True)


_finder: Any = _Finder()


def call(name: str, function: Callable[[ModuleType], None]) -> None:
    """Call a function with the module of a full name when it is imported, or now if it has been."""
    if (module := sys.modules.get(name)) is not None:
        _call_safely(function, module)
        return
    _finder.wanted[name] = function
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def forget(name: str) -> None:
    """Undo `call` for a module that has not been imported yet."""
    _finder.wanted.pop(name, None)
    if not _finder.wanted and _finder in sys.meta_path:
        # Another list, as `core.finders` explains: an import that goes on would miss a finder.
        sys.meta_path = [one for one in sys.meta_path if one is not _finder]


def sample(folder: str) -> None:
    """Sample the stacks of this process for the session above it, if that asks for it.

    A thread imports what that needs after the first tenth of a second: a process that ends before
    pays nothing but the thread. It does so while the job waits in an import of its own, if there is
    one soon: a loop over `sys.modules` itself ends with an error if somebody adds to that.
    """
    global _filters
    import os

    asked, _filters = _read(f"{folder}/profile.json"), _count_filters()
    limits, names = _read("/proc/self/limits"), (b"Max data size", b"Max address space")
    found = {limits.partition(name)[2].lstrip()[:9] for name in names}
    # As `recorders.profile.live` does it: a thread takes 70 MB of what `ulimit -v` and `-d` leave.
    is_short = bool(found - {b"", b"unlimited"}) and b'"rate_hz": null' in asked
    # A filter that the job added may kill a process that starts a thread. A thread of ours would
    # outlive a sub-interpreter, whose end breaks the process then.
    if not asked or is_short or _count_filters(asked) < _filters or not _is_main_interpreter():
        return
    # Imported here, in the main thread: `threading` takes its first importer for the main thread.
    import threading  # noqa: F401

    command = "".join(getattr(sys, "orig_argv", ())[-2:])
    if "resource_tracker import main" in command:
        return
    if "forkserver import main" in command:  # it only starts others
        os.register_at_fork(after_in_child=_begin_sampling)
        return
    os.register_at_fork(
        before=_hold_import, after_in_parent=_allow_import, after_in_child=_follow_child
    )
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _begin_sampling(_MEETING_SEC)


def _read(path: str) -> bytes:
    try:
        with _open_at_start(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _count_filters(text: bytes = b"") -> bytes:
    """Return the first digit of the number of filters (seccomp) in a text; default: of this one."""
    text = text or _read("/proc/self/status")
    return text.partition(b"eccomp_filters")[2].lstrip(b'": \t')[:1]


def _is_main_interpreter() -> bool:
    try:  # which it refuses to all others; at the start nobody has set one
        _signal.set_wakeup_fd(-1)
    except ValueError:
        return False
    return True


_filters = b""
_importing = _thread.allocate_lock()
_held: list[bool] = []


def _hold_import() -> None:
    # A child must not inherit a half-made import. A second is more than one takes.
    _held.append(_importing.acquire(True, 1.0))


def _allow_import() -> None:
    if _held and _held.pop():
        _importing.release()


def _follow_child() -> None:
    _allow_import()
    _meetings.clear()
    _on_search.clear()
    # What is imported already follows the child itself.
    if "mlflow_perf.recorders.profile.live" not in sys.modules and _count_filters() == _filters:
        _begin_sampling()


_MEETING_SEC = 0.1  # for which our thread waits for an import of the job
_PATIENCE_SEC = 2.0  # for which the job waits: 40 ms are usual
_SLOW_SEC = 0.05  # for one of some fifty modules

# The modules of Python that the sampler imports.
_NEEDED = """
    annotationlib array ast collections contextlib copyreg enum fcntl functools importlib json
    keyword math mmap opcode operator re reprlib resource select sre_compile sre_constants
    sre_parse struct threading types typing warnings weakref
""".split()  # noqa: SIM905 - shorter


def _hides_needed() -> bool:
    """Return whether a file of the job hides one of these modules: no thread of ours may run it."""
    import os
    from _frozen_importlib_external import PathFinder  # a job may hide `importlib` itself

    before = sys.path[: sys.path.index(os.__file__.rpartition(os.sep)[0])]
    missing = [n for n in _NEEDED if n not in sys.modules and n not in sys.builtin_module_names]
    found = (PathFinder.find_spec(name, before) for name in missing)
    # A folder without `__init__.py` hides nothing.
    return any(spec is not None and spec.loader is not None for spec in found)


_meetings: list[tuple[Any, Any]] = []
"""Two held locks: who releases the first lets our thread import; that releases the second then."""

_on_search: list[Callable[[], object]] = []  # called at each search, while our thread imports


def _can_meet(frame: Any) -> bool:
    """Return whether a finder is asked for an import, and none of what the sampler needs."""
    # A search alone, by `importlib.util`, may well be in a loop over `sys.modules`.
    if frame is None or frame.f_code.co_name != "_find_and_load_unlocked":
        return False
    # Nobody may wait in the middle of a module that the sampler needs.
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_find_and_load" and code.co_filename.startswith("<frozen importlib"):
            top = frame.f_locals["name"].partition(".")[0]
            if top in _NEEDED or top == "mlflow_perf":
                return False
        frame = frame.f_back
    return not (sys.getprofile() or sys.gettrace() or _is_profiled())


def _meet_in_import() -> None:
    """Let our thread import the sampler while the job imports a module, if it is time for that."""
    if not _can_meet(sys._getframe(2).f_back):  # noqa: SLF001 - what asked the finder
        return
    try:
        wanted, over = _meetings.pop()
    except IndexError:  # another thread has come to it
        return
    try:
        # The import system holds it while it asks a finder, and our thread needs it.
        _imp.release_lock()
        if not _imp.lock_held():
            wanted.release()
            over.acquire(True, _PATIENCE_SEC)
    finally:
        _imp.acquire_lock()


_monitoring: Any = getattr(sys, "monitoring", None)  # since Python 3.12
_use_tool_id: Any = getattr(_monitoring, "use_tool_id", None)


def _use_for_job(*args: Any) -> Any:
    """Switch a profiler of the job on, when the import has ended.

    From Python 3.12 on, cProfile takes each return in a thread of ours for the end of a function of
    the job. It looks this function up in `sys.monitoring`, and calls it before it gets any event.
    """
    is_held = args[:1] == (_monitoring.PROFILER_ID,) and _importing.acquire(True, 1.0)
    try:
        # The sampler, which has been loaded by now, has its own function there.
        current = _monitoring.use_tool_id
        return (_use_tool_id if current is _use_for_job else current)(*args)
    finally:
        if is_held:
            _importing.release()


def _follow_profiler() -> None:
    _use_for_job.__doc__ = _use_tool_id.__doc__
    _use_for_job.__name__ = _use_for_job.__qualname__ = "use_tool_id"
    _monitoring.use_tool_id = _use_for_job


def _forget_profiler() -> None:
    if _monitoring is not None and _monitoring.use_tool_id is _use_for_job:
        _monitoring.use_tool_id = _use_tool_id


def _is_profiled() -> bool:
    return _monitoring is not None and _monitoring.get_tool(_monitoring.PROFILER_ID) is not None


def _list_waits(meet: tuple[Callable[[], object], ...]) -> Any:
    """Return an iterator that waits until no profiler is on, and then takes `_importing`.

    All of it is in C: a thread that waits in it runs no Python code that a profiler could count.
    """
    # `recorders.profile.turns` looks for profilers likewise; this runs where it may not exist.
    from _operator import call, is_not  # type: ignore[attr-defined]  # typeshed lacks some
    from itertools import chain, repeat

    nap = _thread.allocate_lock()
    nap.acquire()
    tools = map(_monitoring.get_tool, repeat(_monitoring.PROFILER_ID))
    looks = {True: bool, False: partial(_importing.acquire, False)}
    tried = map(call, map(looks.__getitem__, map(is_not, tools, repeat(None))))
    answers = {True: partial(bool, 1), False: partial(nap.acquire, True, 0.02)}
    first = map(call, (_importing.release, partial(nap.acquire, True, 0.1), *meet))
    # `any` goes on to the second part, whatever is answered in the first.
    return chain(map({}.get, first), map(call, map(answers.__getitem__, tried)))


class _Hurry:
    """Asks for the interpreter's lock often, while our thread imports beside one that computes.

    Each file would wait 5 ms for it. A question costs 15 µs: beside a long call into C, in vain.
    """

    _get, _set = SYS_AT_START["getswitchinterval"], SYS_AT_START["setswitchinterval"]

    def __enter__(self) -> None:
        self._ident, self._last, self._usual = _thread.get_ident(), _clock(), self._get()
        self._choose(1e-4)
        _on_search.append(self.note_search)

    def _choose(self, seconds: float) -> None:
        self._set(seconds)
        self._chosen = self._get()  # rounded

    def note_search(self) -> None:
        """Ask less often after a module that took long."""
        if _thread.get_ident() == self._ident:
            before, self._last = self._last, _clock()
            if self._last - before > _SLOW_SEC and self._get() == self._chosen:
                self._choose(min(self._usual, 10 * self._chosen))

    def __exit__(self, *_: object) -> None:
        _on_search.clear()
        if self._get() == self._chosen:
            self._set(self._usual)


def _begin_sampling(meeting_sec: float = 0.0) -> None:  # a fork seldom imports anything
    if _is_profiled():  # in a forked child, where it is never switched off
        return
    gate, wanted, over = (_thread.allocate_lock() for _ in range(3))
    for lock in (gate, wanted, over):
        lock.acquire()
    meet = (partial(_meetings.append, (wanted, over)), partial(wanted.acquire, True, meeting_sec))
    waits: Sequence[Any] = (partial(gate.acquire, True, 0.1), *meet, partial(_importing.acquire))
    if _monitoring is not None:
        waits = (partial(any, _list_waits(meet)),)
        _importing.acquire(False)  # until the thread waits
        _follow_profiler()

    def begin() -> None:
        try:
            try:
                with _Hurry():
                    # A function of the job would be called for each import of ours.
                    if __import__ is not _import_at_start or _hides_needed():
                        return
                    from mlflow_perf.recorders.profile import live
            finally:
                _forget_profiler()
            live.join()
        # One without mlflow-perf, with another version, or whose parts the job has replaced.
        except Exception:  # noqa: BLE001, S110
            pass
        finally:
            _importing.release()
            over.release()

    faults = {_signal.SIGSEGV, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGILL}
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals() - faults)
    try:
        # It waits in C: a thread without a frame is not in `sys._current_frames`.
        _thread.start_new_thread(list, (map(partial.__call__, (*waits, partial(begin))),))
    except RuntimeError:  # no room for one more
        if _monitoring is not None:
            _importing.release()
            _forget_profiler()
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
