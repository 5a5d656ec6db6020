"""Loggers whose messages never raise, because a job's own logging may."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter  # takes no parameter in Python 3.10


class SafeLogger(_Adapter):
    """A logger that drops a message which the job's handlers, filters or clock refuse."""

    def log(self, level: int, msg: object, *args: Any, **options: Any) -> None:
        """Log a message; an error of a handler, a filter or a record factory is dropped."""
        try:
            if self.isEnabledFor(level):
                # The record's file and line are the caller's, not this method's.
                self.logger.log(level, msg, *args, **options, stacklevel=2)
        # Whatever the job's logging raises, a message of ours must not bring it into the job.
        except Exception:  # noqa: BLE001, S110 - there is no place left to tell it
            pass


def get_logger(name: str) -> SafeLogger:
    """Return the logger of a module of ours.

    Args:
        name: Its `__name__`.
    """
    return SafeLogger(logging.getLogger(name), {})
