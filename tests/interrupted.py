"""Raises in our code at each of its lines, as a signal handler of the job may at any moment."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed does not have it
import contextlib
import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from mlflow_perf.core.thread_list import list_threads

PACKAGE = os.sep + "mlflow_perf" + os.sep


class TooLateError(Exception):
    """What the job's alarm raises."""


def ring(*_: object) -> None:
    """Handle SIGALRM."""
    raise TooLateError


def look() -> dict[str, Any]:
    """Return what the code under test may have left behind in this process."""
    links: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the folder's own
            links[os.readlink(f"/proc/self/fd/{number}").split(":")[0]] += 1
    handled = (signal.SIGTERM, signal.SIGHUP)
    return {
        "descriptors": links,
        "threads": sorted(t.name for t in list_threads() if "mlflow-perf" in t.name),
        "handlers": [signal.getsignal(number) for number in handled],
        "functions": (_signal.signal, _signal.getsignal),  # called by those of `signal`
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "wakeup": (signal.set_wakeup_fd, signal.set_wakeup_fd(-1)),
        "environ": dict(os.environ),
    }


def check_each_line(act: Callable[[], object], clean_up: Callable[[], object]) -> int:
    """Call a function again and again, raise at another line of ours each time, and compare.

    Args:
        act: What is called.
        clean_up: What its caller calls then; nothing is raised there, and nothing must be left.

    Returns:
        At how many lines something was raised.
    """
    earlier = signal.signal(signal.SIGALRM, ring)
    try:
        act()
        clean_up()
        gc.collect()
        before, count = look(), 0
        while (where := _raise_at(act, count)) is not None:
            clean_up()
            until = time.monotonic() + 20
            while (now := look()) != before and time.monotonic() < until:  # threads need a moment
                time.sleep(0.01)
                gc.collect()
            left = [f"{name}: {now[name]} is not {before[name]}" for name in now]
            assert now == before, "\n".join([f"After an error at {where}:", *left])
            count += 1
        clean_up()
    finally:
        signal.signal(signal.SIGALRM, earlier)
    return count


def _raise_at(act: Callable[[], object], count: int) -> str | None:
    """Raise at the first line that comes after so many other ones, and return that line."""
    seen: set[tuple[str, int]] = set()
    rang: str | None = None

    def on_line(frame: FrameType, event: str, _: object) -> Any:
        nonlocal rang
        line = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and rang is None and line not in seen:
            if len(seen) == count:
                rang = f"{line[0].rpartition(PACKAGE)[2]}:{line[1]}"
                ring()
            seen.add(line)
        return on_line

    def on_call(frame: FrameType, *_: object) -> Any:
        above: FrameType | None = frame
        while above is not None and above.f_code.co_name != "__del__":  # it drops every error
            above = above.f_back
        return on_line if above is None and PACKAGE in frame.f_code.co_filename else None

    earlier = sys.gettrace()
    sys.settrace(on_call)
    try:
        act()
    except TooLateError:
        pass
    else:
        assert rang is None, f"the error at {rang} was swallowed"
    finally:
        sys.settrace(earlier)
    return rang
