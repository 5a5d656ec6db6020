"""A signal that interrupts code of ours: the report is made once that code is done."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import FrameType

import psutil
import pytest

import mlflow_perf
from mlflow_perf.session.interrupted import has_interrupted_us

_PACKAGE = Path(mlflow_perf.__file__).parent
_FRAMES = """
import sys

def call(function, *more):
    return function(*more)

def take():
    return sys._getframe()
"""


def _stack(*files: str) -> FrameType:
    """Return the innermost frame of calls of functions in files, the innermost first."""
    functions = []
    for i, file in enumerate(files):
        names: dict[str, object] = {}
        exec(compile(_FRAMES, file, "exec"), names)
        functions.append(names["call" if i else "take"])
    innermost, *outer = functions
    frame: FrameType = outer[-1](*outer[-2::-1], innermost) if outer else innermost()  # type: ignore[operator]
    return frame


@pytest.mark.parametrize(
    ("files", "is_ours"),
    [
        ((f"{_PACKAGE}/publish/delivery_queue.py", "/home/me/job.py"), True),
        ((json.__file__, f"{_PACKAGE}/sampling/windows.py", "/home/me/job.py"), True),
        (("/home/me/job.py", f"{_PACKAGE}/session/report.py"), False),
        ((json.__file__, "/home/me/job.py", f"{_PACKAGE}/session/report.py"), False),
        ((f"{_PACKAGE}/session/signals.py", "/home/me/job.py"), False),
        (("/v/site-packages/job.py", f"{_PACKAGE}/session/report.py"), False),
        ((json.__file__, "/v/site-packages/job.py", f"{_PACKAGE}/session/report.py"), False),
        ((psutil.__file__, f"{_PACKAGE}/sampling/windows.py", "/home/me/job.py"), True),
        ((f"{_PACKAGE}/session/own_handlers.py", f"{_PACKAGE}/core/threads.py"), True),
    ],
)
def test_what_runs_innermost_counts(files: tuple[str, ...], *, is_ours: bool) -> None:
    """Not what has called the job, nor the handler itself."""
    assert has_interrupted_us(_stack(*files)) is is_ours


def test_a_signal_does_not_wait_for_a_lock_that_it_has_interrupted() -> None:
    """Each waited for the other for 20 s, and the report was lost."""
    code = f"""
        import os, signal, threading, time
        from mlflow_perf.session.signals import SignalWatch
        lock = threading.Lock()

        def end(number):
            with lock:
                print("reported", flush=True)

        watch = SignalWatch(end, lambda number: None)
        watch.arm()
        held = [
            "with lock:",
            "    os.kill(os.getpid(), signal.SIGTERM)",
            "    time.sleep(0.3)",
            "    print('done', flush=True)",
        ]
        exec(compile(os.linesep.join(held), "{_PACKAGE}/session/report.py", "exec"))
        time.sleep(60)
        print("never", flush=True)
        """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.stdout.split() == ["done", "reported"]
    assert ended.returncode == -signal.SIGTERM
