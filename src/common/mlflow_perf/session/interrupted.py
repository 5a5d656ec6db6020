"""Whether a signal has interrupted code of ours, which may hold a lock that its report needs."""

from __future__ import annotations

import re
import signal
import sysconfig
import threading
from pathlib import Path
from types import FrameType

from mlflow_perf.core.originals import os, sys, time
from mlflow_perf.core.threads import Event, Thread
from mlflow_perf.recorders.profile.stacks import find_obstacle

_PACKAGE = f"{Path(__file__).resolve().parents[1]}{os.sep}"
_HANDLERS = tuple(f"{_PACKAGE}session{os.sep}{name}.py" for name in ("signals", "own_handlers"))
_LIBRARIES = (sysconfig.get_path("stdlib"), "<frozen ")
# What is installed may be the job. These are what code of ours calls.
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\](?!psutil|mlflow|sqlalchemy|urllib3)")
_AGAIN_SEC, _LEAVE_SEC = 0.02, 1.0


def has_interrupted_us(frame: FrameType | None = None) -> bool:
    """Return whether a handler that calls this has interrupted code of ours, or what that calls.

    Args:
        frame: Where to begin; default: the caller.
    """
    found: FrameType | None = sys._getframe(1) if frame is None else frame  # noqa: SLF001
    while found is not None and found.f_code.co_filename in _HANDLERS:
        found = found.f_back
    while found is not None:
        file = found.f_code.co_filename
        if file.startswith(_PACKAGE):
            return True
        if _INSTALLED.match(file) or not ("-packages" in file or file.startswith(_LIBRARIES)):
            return False
        found = found.f_back
    return False


def wait_for_us(is_held: Event) -> None:
    """Wait until the main thread has left code of ours, or is held there; for a second at most.

    A report that it is about to send would be lost with the process. Where frames cannot be read,
    nobody knows where it is.
    """
    until = time.monotonic() + _LEAVE_SEC
    while not find_obstacle() and not is_held.is_set() and time.monotonic() < until:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001
        if frame is None or not has_interrupted_us(frame):
            return
        del frame
        is_held.wait(_AGAIN_SEC)


def send_again(number: int) -> None:
    """Send a signal to the main thread once more, in a moment."""
    main = threading.main_thread().ident
    assert main is not None

    def send() -> None:
        time.sleep(_AGAIN_SEC)
        signal.pthread_kill(main, number)

    Thread(send, name="mlflow-perf-again").start()
