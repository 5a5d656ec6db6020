"""Loggers whose messages never raise, because a job's own logging may."""

from __future__ import annotations

import logging
import select
import stat
import sys
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.originals import os

if sys.platform != "win32":
    import resource

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter  # takes no parameter in Python 3.10


_STDERR, _PATIENCE_MS, _LINE_BYTES = 2, 500, 4096


def takes_text() -> bool:
    """Return whether a line can be written to standard error without blocking or ending the job.

    A full pipe blocks its writer until somebody reads it. A pipe without a reader ends its writer
    by SIGPIPE, if the job does not ignore that signal. A file that the job opens after it has
    closed standard error gets that number; unlike a standard stream, children do not inherit it.
    Where nothing more can be written, Python would keep the line, and end with exit code 120.
    """
    if not hasattr(select, "poll"):  # Windows
        return True
    waiting = select.poll()
    waiting.register(_STDERR, select.POLLOUT)
    try:
        if not (os.get_inheritable(_STDERR) and _has_room(_STDERR)):
            return False
        found = waiting.poll(_PATIENCE_MS)
    except OSError:
        return True
    return bool(found) and not found[0][1] & (select.POLLERR | select.POLLHUP)


def _has_room(handle: int) -> bool:
    """Return whether a file or a device takes a line: no full disk, no limit of a file's size."""
    facts = os.fstat(handle)
    if stat.S_ISCHR(facts.st_mode):
        try:
            os.write(handle, b"")
        except OSError:  # /dev/full refuses even nothing
            return False
    if not stat.S_ISREG(facts.st_mode):
        return True
    disk, limit = os.fstatvfs(handle), resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    is_full = disk.f_blocks > 0 and disk.f_bavail == 0
    return not is_full and (limit < 0 or facts.st_size + _LINE_BYTES <= limit)


class SafeLogger(_Adapter):
    """A logger that drops a message if the job's handlers, filters or clock raise an error."""

    def log(self, level: int, msg: object, *args: Any, **options: Any) -> None:
        """Log a message; an error of a handler, a filter or a record factory is dropped."""
        try:
            if self.isEnabledFor(level) and takes_text():
                # The record's file and line are the caller's, not this method's.
                self.logger.log(level, msg, *args, **options, stacklevel=2)
        # Whatever the job's logging raises, a message of ours must not bring it into the job.
        except (Exception, SystemExit) as error:
            if is_from_handler(error):
                raise


def get_logger(name: str) -> SafeLogger:
    """Return the logger of a module of ours.

    Args:
        name: Its `__name__`.
    """
    return SafeLogger(logging.getLogger(name), {})
