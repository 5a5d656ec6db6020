"""What procfs shows of a process that has executed no program since it was forked."""

from __future__ import annotations

import re
from operator import le

from mlflow_perf.readers.procfile import ProcFolder

FORKED = 0x40
"""In the flags of `stat`: forked, and no program executed since (PF_FORKNOEXEC)."""

_PEAKS = re.compile(rb"\nVm(?:Peak|HWM):\s*(\d+) kB")


def read_layout(folder: ProcFolder, pid: int) -> list[bytes]:
    """Return where program, stack, arguments and environment are: a fork has its parent's."""
    data = folder.read(b"%d/stat" % pid)
    fields = [] if data is None else data[data.rfind(b")") + 2 :].split()
    return [*fields[23:26], *fields[42:49]]


def uses_memory_of(folder: ProcFolder, pid: int, parent: int) -> bool:
    """Return whether a process has no memory but its parent's, as a child of `vfork` at first.

    The peaks of one memory only grow, so those that the child shows are between two readings of
    the parent's. A copy (`fork`) has peaks of its own, which begin without the parent's files.
    """
    before, own, after = (_read_peaks(folder, which) for which in (parent, pid, parent))
    is_known = len(before) == len(own) == len(after) == 2
    return is_known and all(map(le, before, own)) and all(map(le, own, after))


def _read_peaks(folder: ProcFolder, pid: int) -> list[int]:
    """Return the peaks of a process's addresses and of its memory, in kB; empty if it has ended."""
    return [int(size) for size in _PEAKS.findall(folder.read(b"%d/status" % pid) or b"")]
