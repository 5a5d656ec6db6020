"""Loggers whose messages never raise, because a job's own logging may."""

from __future__ import annotations

import select
import sys
from stat import S_ISCHR, S_ISREG
from typing import TYPE_CHECKING, TextIO

from mlflow_perf.core.clean_text import clean
from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.originals import os
from mlflow_perf.core.replaced import may_log

if sys.platform != "win32":
    from resource import RLIMIT_FSIZE, getrlimit

if TYPE_CHECKING:
    import logging

    _ExcInfo = bool | BaseException

_poll = getattr(select, "poll", None)  # a test of the job may replace it
_DEBUG, _INFO, _WARNING = 10, 20, 30
_STDERR, _PATIENCE_MS, _LINE_BYTES = 2, 500, 4096


def takes_text() -> bool:
    """Return whether a line can be written to standard error without blocking or ending the job.

    A full pipe blocks its writer until somebody reads it. A pipe without a reader ends its writer
    by SIGPIPE, if the job does not ignore that signal. A file that the job opens after it has
    closed standard error gets that number; unlike a standard stream, children do not inherit it.
    Where nothing more can be written, Python would keep the line, and end with exit code 120.

    In a file, the place of the line is the end then.
    """
    if _poll is None:  # Windows
        return True
    waiting = _poll()
    waiting.register(_STDERR, select.POLLOUT)
    try:
        if not (os.get_inheritable(_STDERR) and _has_room(_STDERR)):
            return False
        go_to_end(_STDERR)
        found = waiting.poll(_PATIENCE_MS)
    except OSError:  # the job has closed it
        return not _is_standard_error(sys.stderr)
    return bool(found) and not found[0][1] & (select.POLLERR | select.POLLHUP)


def go_to_end(handle: int) -> None:
    """Let what is written next to a file go behind all that is there.

    What a job wrote to `/dev/stderr` by that name has not moved the place of this descriptor.

    Raises:
        OSError: When the descriptor is closed.
    """
    if S_ISREG(os.fstat(handle).st_mode):
        os.lseek(handle, 0, os.SEEK_END)


def _is_standard_error(stream: TextIO) -> bool:
    try:
        return stream.fileno() == _STDERR
    except (OSError, ValueError, AttributeError):  # closed, no file, or None
        return False


def _has_room(handle: int) -> bool:
    """Return whether a file or a device takes a line: no full disk, no limit of a file's size."""
    facts = os.fstat(handle)
    if S_ISCHR(facts.st_mode):
        try:
            os.write(handle, b"")
        except OSError:  # /dev/full refuses even nothing
            return False
    if not S_ISREG(facts.st_mode):
        return True
    disk, limit = os.fstatvfs(handle), getrlimit(RLIMIT_FSIZE)[0]
    is_full = disk.f_blocks > 0 and disk.f_bavail == 0
    return not is_full and (limit < 0 or facts.st_size + _LINE_BYTES <= limit)


class SafeLogger:
    """A logger that drops a message if the job's handlers, filters or clock raise an error.

    It does not import `logging`, which calls `time.time` and registers functions for forks and the
    exit: a command under `mlflow-perf run` may have replaced those, and have no use for `logging`.
    Nobody has set a handler there, so a warning is written as Python's last resort would write it,
    and so it is while a record would call what the job has put in the place of the clock.

    Args:
        name: Name of the module whose logger it is.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger: logging.Logger | None = None

    def debug(self, message: str, *args: object, exc_info: _ExcInfo = False) -> None:
        """Log a message at the level DEBUG."""
        self._log(_DEBUG, message, args, exc_info)

    def info(self, message: str, *args: object, exc_info: _ExcInfo = False) -> None:
        """Log a message at the level INFO."""
        self._log(_INFO, message, args, exc_info)

    def warning(self, message: str, *args: object, exc_info: _ExcInfo = False) -> None:
        """Log a message at the level WARNING."""
        self._log(_WARNING, message, args, exc_info)

    def _log(self, level: int, message: str, args: tuple[object, ...], exc_info: _ExcInfo) -> None:
        try:
            if self._logger is None and (module := sys.modules.get("logging")) is not None:
                # One of the job's own class may show all, or write to a file.
                manager = module.Logger.manager
                with module._lock:  # noqa: SLF001 - as `getLogger` does
                    of_job, manager.loggerClass = manager.loggerClass, module.Logger
                    try:
                        self._logger = module.getLogger(self._name)
                    finally:
                        manager.loggerClass = of_job
            if level >= _WARNING:  # a name, or what a server said, may hold a terminal's commands
                args = tuple(clean(one) if _is_text(one) else one for one in args)
            if self._logger is not None and may_log():
                is_on = self._logger.isEnabledFor(level)
                is_on = is_on and (level >= _WARNING or _is_asked_for(self._logger))
                if is_on and takes_text():
                    # The record's file and line are those of the caller of `warning`.
                    error = exc_info or None
                    if not self._logger.hasHandlers():  # Python's last resort names no logger
                        message = f"mlflow-perf: {message}"
                    self._logger.log(level, message, *args, exc_info=error, stacklevel=3)
            elif level >= _WARNING and takes_text():
                text = message % args if args else message
                said = f" {sys.exc_info()[1]!r}" if exc_info else ""
                sys.stderr.write(f"mlflow-perf: {text}{said}\n")
        except RecursionError:  # the job is near the limit: there is no room to say it
            pass
        # Whatever the job's logging raises, a message of ours must not bring it into the job.
        except (Exception, SystemExit) as error:
            if is_from_handler(error):
                raise


def _is_text(value: object) -> bool:
    return isinstance(value, str | BaseException) or hasattr(value, "__fspath__")


def _is_asked_for(logger: logging.Logger | None) -> bool:
    """Return whether a level was set for our loggers, not only for all loggers of the job."""
    while logger is not None and logger.parent is not None:
        if logger.level:
            return True
        logger = logger.parent
    return False


def get_logger(name: str) -> SafeLogger:
    """Return the logger of a module of ours.

    Args:
        name: Its `__name__`.
    """
    return SafeLogger(name)
