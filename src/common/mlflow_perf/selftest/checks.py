"""The checks: the measured figure of each load against the true one, within a stated bound."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

_TIMEOUT_SEC = 120.0


@dataclass(frozen=True)
class Spec:
    """One row of the table of checks.

    Attributes:
        load: Name of the load.
        name: The checked figure, for people.
        unit: Unit of the figure.
        bound_pct: Largest error that passes, in per cent of the true figure.
    """

    load: str
    name: str
    unit: str
    bound_pct: float


# fmt: off
CHECKS = (
    Spec("cpu_bursts", "CPU time, bursts of 200 ms", "s", 1.0),
    Spec("short_job", "CPU time of a job of 50 ms", "s", 10.0),
    Spec("ended_children", "CPU time of 30 children that ended", "s", 1.0),
    Spec("disk_write", "Written to disk, with fsync", "MB", 1.0),
    Spec("disk_read", "Read from disk, past the cache", "MB", 1.0),
    # All processes share the interface, and it counts headers too.
    Spec("loopback", "Sent over loopback", "MB", 2.0),
    Spec("memory_peak", "Memory peak of 300 ms", "MB", 2.0),
    Spec("duration", "Duration", "s", 1.0),
    Spec("profile_split", "Wall time in the right function", "%", 3.0),
    Spec("profile_short", "Wall time in the right function, 200 ms", "%", 3.0),
    Spec("profile_threads", "CPU time in the right function, threads", "%", 3.0),
    Spec("profile_children", "CPU time in the right function, children", "%", 3.0),
    Spec("gpu_busy", "GPU busy for two seconds", "%", 10.0),
)
# fmt: on
"""Every check, in the order in which it runs."""


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: The checked figure.
        unit: Unit of the figure.
        true: The true figure of the load; None if the load could not run here.
        measured: The measured figure; None likewise.
        bound_pct: Largest error that passes, in per cent.
        skipped: Why the load could not run here; empty if it ran.
    """

    name: str
    unit: str
    true: float | None
    measured: float | None
    bound_pct: float
    skipped: str = ""

    @property
    def error_pct(self) -> float | None:
        """Difference of the measured figure from the true one, in per cent of the true one."""
        if self.true is None or self.measured is None or self.true == 0:
            return None
        return 100.0 * (self.measured - self.true) / self.true

    @property
    def passed(self) -> bool | None:
        """Whether the error is within the bound; None if the load could not run here."""
        error = self.error_pct
        return None if error is None else abs(error) <= self.bound_pct

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        found = {**asdict(self), "error_pct": self.error_pct, "passed": self.passed}
        del found["skipped"]
        return found


Run = Callable[[str], "dict[str, Any] | list[float]"]
"""Runs a load by its name; returns `[true, measured]`, or `{"skipped": why}`.

A third figure is the error that the load's number of samples leaves open: a bound is never less.
"""


def run_checks(specs: Iterable[Spec] = CHECKS, run: Run | None = None) -> Iterator[Check]:
    """Run each load in a process of its own and yield the results.

    Args:
        specs: The checks.
        run: Runs a load; default: in a new interpreter.
    """
    for spec in specs:
        found = (run or _run_in_new_process)(spec.load)
        if isinstance(found, dict):
            yield Check(spec.name, spec.unit, None, None, spec.bound_pct, str(found["skipped"]))
        else:
            true, measured, *inexact = found
            yield Check(spec.name, spec.unit, true, measured, max([spec.bound_pct, *inexact]))


def _run_in_new_process(load: str) -> Any:
    folder = None
    # The first of the usual folders on a disk: files in memory are never written to a disk.
    for parent in (tempfile.gettempdir(), "/var/tmp", "."):  # noqa: S108 - made private below it
        stat = ["stat", "--file-system", "--format=%T", parent]
        try:
            kind = subprocess.run(stat, capture_output=True, text=True, check=True, timeout=10)
            in_memory = kind.stdout.strip() in ("tmpfs", "ramfs", "overlayfs")
        except (OSError, subprocess.SubprocessError):
            in_memory = False
        if not in_memory:
            folder = parent
            break
    with tempfile.TemporaryDirectory(prefix=".mlflow-perf-selftest-", dir=folder) as own:
        command = [sys.executable, "-m", "mlflow_perf.selftest.loads", load, own]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT_SEC, check=True
            )
            return json.loads(done.stdout)
        except (subprocess.SubprocessError, ValueError) as error:
            return {"skipped": str(error)}


def passed(checks: Iterable[Check]) -> bool:
    """Return whether every check that could run is within its bound, and at least one could."""
    results = [check.passed for check in checks if check.passed is not None]
    return bool(results) and all(results)
