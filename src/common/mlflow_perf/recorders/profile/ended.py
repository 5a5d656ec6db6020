"""Keeps the spool folder small: the samples of ended processes are merged into one file."""

from __future__ import annotations

import contextlib
import signal
import struct
import sys
from pathlib import Path

from mlflow_perf.core.originals import os
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.errors import MlflowPerfError
from mlflow_perf.model.samples import Function, RawStacks, Sample
from mlflow_perf.recorders import spool
from mlflow_perf.recorders.profile import stack_spool
from mlflow_perf.recorders.profile.windows import StackWindow

if sys.platform == "linux":
    import fcntl

_KEPT = 64
"""So many files of ended processes are left as they are."""
_AT_ONCE = 8
"""So many are merged at a time, because the sampler's thread waits for it."""
_MOST_FUNCTIONS = 20_000
_UNREADABLE = (
    OSError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError, struct.error,
    MlflowPerfError,
)  # fmt: skip
_logger = get_logger(__name__)


class EndedProcesses:
    """Merges the samples of ended processes, of which a job may have any number.

    Args:
        folder: Spool folder of the session.
        rate_hz: The rate that was asked for; None for the default one.
    """

    def __init__(self, folder: Path, rate_hz: float | None) -> None:
        self._folder = folder
        self._rate_hz = rate_hz
        self._window: StackWindow | None = None
        self._functions: dict[Function, Function] = {}

    def merge(self) -> None:
        """Merge some files, if there are many."""
        own = None if self._window is None else f"{self._window.source}{spool.SUFFIX}"
        try:
            names = os.listdir(self._folder)
        except OSError:
            return
        names = [one for one in names if one.startswith(f"{stack_spool.KIND}-") and one != own]
        if len(names) <= _KEPT:
            return
        paths = sorted((self._folder / name for name in names), key=_find_age)
        for path in [one for one in paths[:_KEPT] if not is_written(one)][:_AT_ONCE]:
            try:
                stacks = stack_spool.read_stacks(spool.read_file(path))
            # The session says at its end which files are damaged.
            except _UNREADABLE:
                _logger.debug("The samples in %s are not merged:", path, exc_info=True)
                continue
            self._add(stacks)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _add(self, stacks: RawStacks) -> None:
        if self._window is None:
            self._window = StackWindow(self._rate_hz)
            self._window.spool_to(self._folder)
        # Each file has functions of its own, and those of one program are mostly the same.
        if len(self._functions) > _MOST_FUNCTIONS:
            self._functions.clear()
        functions = [self._functions.setdefault(one, one) for one in stacks.functions]
        samples = [
            Sample(root, line, tuple(functions[one] for one in path))
            for root, line, path in stacks.stacks
        ]
        for at, length, stack, wall, cpu, count in stacks.cells:
            self._window.add(samples[stack], at + length / 2, wall, cpu, count)


def is_written(path: Path) -> bool:
    """Return whether a process has a file open for writing, or mapped; True if that is unknown.

    A process identifier would not do: that of a container means another process here.
    """
    if sys.platform != "linux":
        return True
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        # The kernel leases a file for reading only while nobody can write it. It tells the holder
        # when somebody wants to: by this signal, because SIGIO would end the process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _find_age(path: Path) -> float:
    with contextlib.suppress(OSError):
        return os.stat(path).st_mtime
    return 0.0
