"""How long this program has been running, from its first instruction on.

A shell that ends with `exec mlflow-perf run`, and bash does so with the last command of `bash -c`,
becomes that program: the process is as old as the shell. Import this before a child is started.
"""

from __future__ import annotations

import contextlib

from mlflow_perf.core.clock import read_monotonic
from mlflow_perf.core.originals import open_file, os, time

if os.name == "posix":
    import resource


def process_age_sec(*, at: float) -> float:
    """Return the age of this process at a monotonic time; 0 if the system does not provide it."""
    try:
        with open_file("/proc/self/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        born = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - born
    except (OSError, ValueError, AttributeError, IndexError):
        return 0.0
    return max(0.0, age - (read_monotonic() - at))


def _find_begin() -> float:
    """Return when this program began, in monotonic time."""
    now = read_monotonic()
    age_sec = process_age_sec(at=now)
    # The kernel does not tell when a program replaced another one. One that has just begun has had
    # no children, unlike a shell; it has hardly done more than compute, or wait for a CPU.
    if os.name == "posix" and resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss:
        with contextlib.suppress(OSError, IndexError, ValueError):
            with open_file("/proc/self/schedstat", encoding="ascii") as file:
                ran_ns, waited_ns = map(int, file.read().split()[:2])
            age_sec = min(age_sec, (ran_ns + waited_ns) / 1e9)
    return now - age_sec


_began = _find_begin()


def program_age_sec() -> float:
    """Return how long this program has been running, in seconds."""
    return read_monotonic() - _began
