"""Keeps a signal that the job handles from ending a process which is at its end.

Python gives up its handlers before it takes its modules apart. That lasts some milliseconds, but
with MLflow, where we have loaded it, tenths of seconds and more: the next signal of a timer that
the job never stopped would end the process, and change its exit code.
"""

from __future__ import annotations

import atexit
import signal
from contextlib import suppress

_TIMERS = {"SIGALRM": "ITIMER_REAL", "SIGVTALRM": "ITIMER_VIRTUAL", "SIGPROF": "ITIMER_PROF"}
# Those by which somebody wants the process to end; and SIGCHLD, by which Python waits for children.
_LEFT_ALONE = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGCHLD")

_is_prolonged = False


def expect_long_exit() -> None:
    """Note that much was loaded for us which the job did not have."""
    global _is_prolonged  # noqa: PLW0603 - of the process
    _is_prolonged = True


def _silence_handled() -> None:
    """Stop the timers, and ignore the other signals, for which the job has handlers.

    Python does not undo that. What the job registered for its exit before it imported us comes
    later: it may still set an alarm.
    """
    if not _is_prolonged:
        return
    for name, timer in _TIMERS.items():
        if callable(signal.getsignal(getattr(signal, name, signal.SIGTERM))):
            with suppress(OSError, ValueError, AttributeError):  # another system, or interpreter
                signal.setitimer(getattr(signal, timer), 0)
    left_alone = {getattr(signal, name, None) for name in (*_LEFT_ALONE, *_TIMERS)}
    for number in signal.valid_signals() - left_alone:
        if callable(signal.getsignal(number)):
            with suppress(OSError, ValueError):  # it cannot be ignored; another interpreter
                signal.signal(number, signal.SIG_IGN)


# The exit runs first what was registered last: nearly all that the job does then comes before.
atexit.register(_silence_handled)
