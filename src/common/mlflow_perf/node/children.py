"""Whether a job would notice the end of a child process of ours."""

from __future__ import annotations

import dis
import itertools
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

_FOR_ANY_CHILD = {"wait3", "wait4", "waitid", "waitpid"}


def notices_children() -> bool:
    """Return whether the end of any child, also of one of ours, reaches the job.

    A handler of SIGCHLD is called, and another thread that waits for any child gets it, as by
    `os.wait()` or again and again by `os.waitpid(-1, os.WNOHANG)`. A function of the job's that
    waits for one child by its number counts, too: from outside it looks the same.
    """
    ended: Any = getattr(signal, "SIGCHLD", None)  # Windows has none
    if ended is None:
        return False
    if signal.getsignal(ended) not in (signal.SIG_DFL, signal.SIG_IGN):
        return True
    frames = sys._current_frames().values()  # noqa: SLF001 - documented
    return any(map(_waits_for_any, frames))


def _waits_for_any(innermost: FrameType) -> bool:
    """Return whether a function of this stack waits for children; Python's own know which one."""
    frame: FrameType | None = innermost
    is_found = False
    while frame is not None:
        known, names = frame.f_globals, {*frame.f_code.co_names}
        package = str(known.get("__name__")).partition(".")[0]
        if package == "mlflow_perf":  # this thread, or one that waits for us
            return False
        if package not in sys.stdlib_module_names:
            is_found |= bool(names & _FOR_ANY_CHILD)
            is_found |= "wait" in names and known.get("wait") is os.wait
            if {"os", "wait"} <= names:  # not `os.getcwd()` and `event.wait()`
                used = [one.argval for one in dis.get_instructions(frame.f_code)]
                is_found |= ("os", "wait") in itertools.pairwise(used)
        frame = frame.f_back
    return is_found
