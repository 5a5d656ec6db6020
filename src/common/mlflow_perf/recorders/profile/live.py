"""The one stack sampler of this process: for its own recordings, or for that of a process above."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from mlflow_perf.core.originals import atexit, open_file, os
from mlflow_perf.core.plain_json import dumps, loads
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.seccomp import count_filters
from mlflow_perf.core.threads import Lock, call_later
from mlflow_perf.model.samples import CHILD_PROCESSES, MAIN_THREAD, RawStacks
from mlflow_perf.recorders import spool
from mlflow_perf.recorders.profile.job_profiler import look_for_profilers
from mlflow_perf.recorders.profile.stack_sampler import StackSampler
from mlflow_perf.recorders.profile.stacks import find_obstacle, is_main_interpreter
from mlflow_perf.recorders.profile.windows import StackWindow

if TYPE_CHECKING:
    from pathlib import Path

_log = get_logger(__name__)
_FORK_SEC = 0.1  # a process that is started is not sampled for as long, either
_AT_END = "interpreter shutdown"  # what Python says of a thread that is started then


class _Live:
    sampler: StackSampler | None = None
    window: StackWindow | None = None
    folder: Path | str | None = None
    filters = 0
    rate_hz: float | None = None


_guard = Lock()
_live = _Live()


def offer(folder: Path, rate_hz: float | None, *, command_of: int | None = None) -> None:
    """Ask the processes that find a spool folder to sample themselves.

    Args:
        folder: The spool folder.
        rate_hz: Samples per second; None for the default.
        command_of: Process whose child is the job's main process, where a command is measured.

    Raises:
        OSError: When the folder cannot be written.
    """
    filters = count_filters()
    asked = {"rate_hz": rate_hz, "command_of": command_of, "seccomp_filters": filters}
    (folder / spool.SAMPLING).write_text(dumps(asked), encoding="ascii")
    # What a wrapper forks is its own, up to the moment at which it becomes the command.
    _live.folder, _live.filters = folder if command_of is None else None, filters
    _live.rate_hz = rate_hz


def withdraw() -> None:
    """Let processes that are forked from now on sample themselves no longer."""
    _live.folder = None


def begin(rate_hz: float | None, folder: Path | None, *, held: bool = False) -> StackWindow:
    """Sample this process from now on, and return the window that gets the samples.

    Several windows may be open at once: one thread samples for all of them.

    Args:
        rate_hz: Samples per second; None for the default. The first window's counts.
        folder: Spool folder that gets the samples too, so that they survive this process.
        held: Whether the window gets samples only from `release` on.
    """
    window = StackWindow(rate_hz)
    window.spool_to(folder)
    try:
        with _guard:
            _start(window, rate_hz, MAIN_THREAD)
        if not held:
            release(window)
        return window
    except BaseException:  # a signal handler of the job raised: nobody has this window
        end(window)
        raise


def _would_take_memory(rate_hz: float | None) -> bool:
    """Return whether a thread would take what a `ulimit` leaves to the job, without being asked.

    The stack of a thread, as large as `ulimit -s`, counts against `-d` and `-v`, and the arena of
    its allocations against `-v`: together 72 to 150 MB of addresses.
    """
    try:
        from resource import RLIM_INFINITY, RLIMIT_AS, RLIMIT_DATA, getrlimit
    except ImportError:  # another platform
        return False
    limits = getrlimit(RLIMIT_AS)[0], getrlimit(RLIMIT_DATA)[0]
    return rate_hz is None and limits != (RLIM_INFINITY, RLIM_INFINITY)


def _start(window: StackWindow, rate_hz: float | None, root: str) -> None:
    if _would_take_memory(rate_hz):
        return
    if obstacle := find_obstacle():
        if is_main_interpreter:  # the others need not say it again
            _log.warning(
                "The job's stacks are not sampled: in %s, reading those of other threads can end "
                "the process. MLFLOW_PERF_PROFILE=0 silences this.", obstacle,
            )  # fmt: skip
        return
    sampler = _live.sampler
    is_new = sampler is None or not sampler.is_alive()
    if sampler is None or is_new:
        sampler = StackSampler(rate_hz, root=root)
    sampler.attach(window)
    if is_new:
        _live.sampler = sampler  # first, so that `end` finds it
        try:
            sampler.start()
        except RuntimeError as error:  # no room for one more thread: the job goes on without
            _live.sampler = None
            if _AT_END not in str(error):
                # A process below a session leaves that to it: its standard error is the job's.
                say = _log.debug if window is _live.window else _log.warning
                say("The job's stacks are not sampled: %s", error)


def release(window: StackWindow) -> None:
    """Let a held window have what this process does from this moment on."""
    if (sampler := _live.sampler) is not None:
        sampler.release(window)


def note_end(window: StackWindow) -> None:
    """Leave out what this process does from this moment on: the window's job has ended."""
    if (sampler := _live.sampler) is not None:
        sampler.note_end(window)


def end(window: StackWindow) -> RawStacks:
    """Sample no longer for a window, and return what it got."""
    with _guard:
        sampler = _live.sampler
        if sampler is not None and not sampler.detach_last(window):
            _live.sampler = None
    window.spool_to(None)
    return window.as_raw()


def join(folder: Path | str | None = None) -> None:
    """Sample this process, below a session, into the session's spool folder, if it asks for that.

    Args:
        folder: The spool folder; default: that of the environment.
    """
    place = os.environ.get(spool.VARIABLE, "") if folder is None else str(folder)
    try:
        with open_file(f"{place}/{spool.SAMPLING}", "rb") as file:
            asked = loads(file.read())
        rate_hz, command_of = asked["rate_hz"], asked["command_of"]
        filters = int(asked["seccomp_filters"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if next(look_for_profilers()):  # in a forked child, where it is never switched off
        return
    if count_filters() > filters:  # one of the job's, which may forbid what the sampler does
        return
    with _guard:
        if _live.window is not None or _live.sampler is not None:
            return
        _live.folder, _live.filters, _live.rate_hz = place, filters, rate_hz
        _live.window = StackWindow(rate_hz)
        _live.window.spool_to(_live.folder, is_asked=False)
        is_main = command_of is not None and command_of == os.getppid()
        _start(_live.window, rate_hz, MAIN_THREAD if is_main else CHILD_PROCESSES)
        release(_live.window)
        atexit.register(_end_joined)


def _end_joined() -> None:
    """Write what this process did since its last sample: it ends now."""
    window, _live.window = _live.window, None
    if window is not None:
        end(window)


def _leave_parent() -> None:
    """Sample a forked child for the session of its parent, in a thread of its own.

    Most children of a server or a test runner end within milliseconds, and to begin takes five.
    """
    global _guard, _live
    before, _guard, _live = _live, Lock(), _Live()
    if before.sampler is not None:
        before.sampler.give_back()
    # A filter that the job has added may kill a process that starts a thread.
    if before.folder is not None and count_filters() <= before.filters:
        _live.folder, _live.filters = before.folder, before.filters  # for its own children
        _live.rate_hz = before.rate_hz
        # A child of the job must start, whatever fails here.
        with suppress(Exception):
            if not _would_take_memory(before.rate_hz):
                call_later(_join_later, _FORK_SEC)


def _join_later() -> None:
    try:
        if _live.folder is not None:
            join(_live.folder)
    # A warning in each child would be one that the job's own processes write.
    except Exception:  # noqa: BLE001
        _log.debug("The stacks of a forked child are not sampled:", exc_info=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_parent)
