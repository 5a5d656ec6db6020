"""Where operations of this process go now: to the session's recorder, to a spool file, or nowhere.

Imports only errors, spool and the rest of this package. Three kinds of process ask:

- The session's own: `activate` names its recorder.
- A forked child of it: the recorder that it inherits is emptied, and writes to a spool file.
- Any other process below the session finds the spool folder in the environment variable
  `MLFLOW_PERF_SPOOL`, and gets a recorder of its own that writes to a spool file there.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from mlflow_perf.errors import SettingError
from mlflow_perf.recorders import spool
from mlflow_perf.recorders.operations.keys import as_text
from mlflow_perf.recorders.operations.metrics import OperationMetrics
from mlflow_perf.recorders.operations.operation_spool import OperationSpool
from mlflow_perf.recorders.operations.timer import OperationTimer
from mlflow_perf.recorders.operations.wrap import wrap

__all__ = ["IdleTimer", "activate", "deactivate", "recorder", "time"]

_log = logging.getLogger(__name__)
_recorder: OperationMetrics | None = None
_folder: Path | None = None
_outer: tuple[OperationMetrics | None, Path | None, str | None] | None = None
# What `deactivate` goes back to; None while no session is active in this process.
_F = TypeVar("_F", bound=Callable[..., Any])
_idle: dict[str, IdleTimer] = {}
_MAX_IDLE = 1000
_told = False


def activate(recorder: OperationMetrics, *, spool: Path | None, spooled: bool = False) -> None:
    """Make a recorder the one of this process, and let the processes below it find the folder.

    Args:
        recorder: Where this process records.
        spool: Where the processes below write their files; None when they are to record nothing.
        spooled: Whether this process writes there itself: it is not the one that drains the folder
            (another rank of the job), or its records must outlive it.
    """
    global _recorder, _folder, _outer  # noqa: PLW0603 - a process has one session
    if _outer is None:
        _outer = _recorder, _folder, os.environ.get(_VARIABLE)
    _recorder, _folder = recorder, spool
    _set_variable(None if spool is None else str(spool))
    if spool is not None and spooled:
        _write(recorder, spool)


def deactivate() -> None:
    """Go back to what was before `activate`: a session of a process above, or none."""
    global _recorder, _folder, _outer  # noqa: PLW0603 - a process has one session
    if _outer is None:
        return
    if _recorder is not None:
        _recorder.attach(None)
    _recorder, _folder, variable = _outer
    _outer = None
    _set_variable(variable)


def _set_variable(value: str | None) -> None:
    if value is None:
        os.environ.pop(_VARIABLE, None)
    else:
        os.environ[_VARIABLE] = value


def recorder() -> OperationMetrics | None:
    """Return the recorder of this process, or None when it belongs to no session."""
    return _recorder


def time(name: str, key: Any = None, *, nested: bool = False) -> OperationTimer | IdleTimer:
    """Return a timer that records into the current session, wherever in the job this is.

    It is a context manager, and a decorator of plain, generator and async functions; a decorated
    function asks for the session at each call. Without a session nothing is measured.

    Args:
        name: Name of the operation; dots make it hierarchical.
        key: Which object the operation is on.
        nested: Put the name below that of the nested timer around: `epoch.load`.

    Example:
        >>> with time("load_data"):
        ...     pass
    """
    if _recorder is not None:
        try:
            return OperationTimer(_recorder, name, key, nested)
        except SettingError as error:
            return _mended(name, nested, error)
    # One object per name, kept: making a new one would cost as much as all the rest.
    if key is None and not nested:
        try:
            return _idle[name]
        except (KeyError, TypeError):
            pass
    return _new_idle(name, key, nested)


def _mended(name: Any, nested: bool, error: SettingError) -> OperationTimer | IdleTimer:
    """Return a timer for what cannot be a name or a key: the job is running, nothing may raise."""
    global _told  # noqa: PLW0603 - one warning for each process
    if not _told:
        _told = True
        _log.warning("%s It is recorded as text, or without its key.", error)
    return time(as_text(name) or "unnamed", nested=nested)


class IdleTimer:
    """Stands where a timer would; shared by all who ask for its name.

    One that was made before the session began, at the top of a module say, measures once there is
    a session.

    Args:
        name: Name of the operation.
        key: Its key.
        nested: Whether the name goes below that of the nested timer around.

    Attributes:
        elapsed_ns: 0: nothing is measured. Take `Timer` for a time that the code itself needs.
        elapsed_ms: 0.
        elapsed_s: 0.
    """

    __slots__ = ("_key", "_name", "_nested", "_open")

    elapsed_ns = 0
    elapsed_ms = 0.0
    elapsed_s = 0.0

    def __init__(self, name: str, key: Any, nested: bool) -> None:
        self._name = name
        self._key = key
        self._nested = nested
        self._open: dict[int, list[OperationTimer | IdleTimer]] = {}

    def __enter__(self) -> IdleTimer:
        if _recorder is not None:
            timer = time(self._name, self._key, nested=self._nested).start()
            self._open.setdefault(threading.get_ident(), []).append(timer)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._open:
            self._stop()

    def start(self) -> IdleTimer:
        """Do as a timer does."""
        return self.__enter__()

    def stop(self) -> IdleTimer:
        """Do as a timer does."""
        self.__exit__(None, None, None)
        return self

    def _stop(self) -> None:
        timers = self._open.get(threading.get_ident())
        if timers:
            timers.pop().stop()
            if not timers:
                self._open.pop(threading.get_ident(), None)

    def __call__(self, function: _F) -> _F:
        """Wrap a function so that each call within a session is timed."""
        wrapped: _F = wrap(function, self._name, self._key, nested=self._nested, find=recorder)
        return wrapped


def _new_idle(name: str, key: Any, nested: bool) -> IdleTimer:
    idle = IdleTimer(name, key, nested)
    if type(name) is str and key is None and not nested and len(_idle) < _MAX_IDLE:
        _idle[name] = idle
    return idle


def _write(to: OperationMetrics, folder: Path) -> None:
    journal = OperationSpool(folder, to)
    if not to.is_empty():
        journal.open()
    to.attach(journal)


def _after_fork() -> None:
    """Let a forked child write a file of its own; what it inherits is its parent's to report."""
    global _recorder, _outer  # noqa: PLW0603 - a process has one session
    _outer = None
    if _recorder is None:
        return
    _recorder.forget()
    if _folder is None:
        _recorder = None
    else:
        _write(_recorder, _folder)


def _join() -> None:
    """Join the session of the process above, where there is one."""
    global _recorder, _folder
    folder = os.environ.get(_VARIABLE)
    if folder and _recorder is None and Path(folder).is_dir():
        _recorder, _folder = OperationMetrics(), Path(folder)
        _write(_recorder, _folder)


_VARIABLE = spool.VARIABLE
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
_join()
