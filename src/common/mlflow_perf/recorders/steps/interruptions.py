"""Interruptions of a loop: garbage collections, page faults, waiting for a CPU."""

from __future__ import annotations

import gc
import threading
from time import perf_counter_ns
from typing import Any

from mlflow_perf.core.originals import os

try:
    from resource import RUSAGE_SELF, getrusage
except ImportError:  # Windows has none
    getrusage = None  # type: ignore[assignment]

_SCHEDSTAT = "/proc/thread-self/schedstat"


class _Collections:
    """Counts the collections of garbage of this process, and the time that they stopped it."""

    def __init__(self) -> None:
        self.count = 0
        self.total_ns = 0
        self._start_ns = 0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        now = perf_counter_ns()
        if phase == "start":
            self._start_ns = now
        elif self._start_ns:
            self.count += 1
            self.total_ns += now - self._start_ns
            self._start_ns = 0


_collections = _Collections()


class Watch:
    """Returns the growth of the known figures of `stats.SUMS` since the last call.

    The first one in a process begins to count collections of garbage.
    """

    def __init__(self) -> None:
        if _collections not in gc.callbacks:
            gc.callbacks.append(_collections)
        self._thread = 0
        self._last: dict[str, float] = {}
        self.look()

    def look(self) -> dict[str, float]:
        """Return the growth of each figure since the last look, in this thread."""
        now = {"gc_ms": _collections.total_ns / 1e6, "gc_count": float(_collections.count)}
        if getrusage is not None:
            usage = getrusage(RUSAGE_SELF)
            now["kernel_ms"] = usage.ru_stime * 1e3
            now["minor_faults"] = float(usage.ru_minflt)
            now["major_faults"] = float(usage.ru_majflt)
        thread = threading.get_ident()
        if thread == self._thread or not self._last:
            now |= _read_schedule()
        grown = {
            name: value - self._last[name]
            for name, value in now.items()
            if value >= self._last.get(name, float("inf"))
        }
        self._thread, self._last = thread, now
        return grown


def _read_schedule() -> dict[str, float]:
    """Return the CPU time of this thread and its wait for a CPU; empty where Linux has neither."""
    try:
        descriptor = os.open(_SCHEDSTAT, os.O_RDONLY)
        try:
            ran_ns, waited_ns, _ = os.read(descriptor, 100).split()
        finally:
            os.close(descriptor)
        return {"cpu_ms": int(ran_ns) / 1e6, "run_delay_ms": int(waited_ns) / 1e6}
    except (OSError, ValueError):
        return {}
