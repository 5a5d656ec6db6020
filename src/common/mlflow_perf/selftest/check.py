"""Each load's figure against its truth, within a stated bound. Imports the loads' names only."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["CHECKS", "Check", "Spec", "passed", "run_checks"]

_TIMEOUT_SEC = 120.0


@dataclass(frozen=True)
class Spec:
    """One row of the table of checks.

    Attributes:
        load: Name of the load.
        name: What is checked, for people.
        unit: Unit of the figures.
        bound_pct: Largest error that is right, in per cent of the truth.
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
    # The interface is everybody's, and counts headers too.
    Spec("loopback", "Sent over loopback", "MB", 2.0),
    Spec("memory_peak", "Memory peak of 300 ms", "MB", 2.0),
    Spec("duration", "Duration", "s", 1.0),
    Spec("gpu_busy", "GPU busy for two seconds", "%", 10.0),
)
# fmt: on
"""Every check, in the order in which it runs."""


@dataclass(frozen=True)
class Check:
    """What one check found.

    Attributes:
        name: What was checked.
        unit: Unit of the figures.
        true: What the load really was; None where it could not run here.
        measured: What was measured.
        bound_pct: Largest error that is right, in per cent.
        skipped: Why it could not run here; empty where it did.
    """

    name: str
    unit: str
    true: float | None
    measured: float | None
    bound_pct: float
    skipped: str = ""

    @property
    def error_pct(self) -> float | None:
        """How far the measured figure is from the true one, in per cent of the true one."""
        if self.true is None or self.measured is None or self.true == 0:
            return None
        return 100.0 * (self.measured - self.true) / self.true

    @property
    def passed(self) -> bool | None:
        """Whether the error is within the bound; None where it could not run here."""
        error = self.error_pct
        return None if error is None else abs(error) <= self.bound_pct

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        found = {**asdict(self), "error_pct": self.error_pct, "passed": self.passed}
        del found["skipped"]
        return found


Run = Callable[[str], "dict[str, Any] | list[float]"]
"""From a load's name to `[true, measured]`, or to `{"skipped": why}`."""


def run_checks(specs: Iterable[Spec] = CHECKS, run: Run | None = None) -> Iterator[Check]:
    """Run each load in a process of its own and yield what was found.

    Args:
        specs: The checks.
        run: What runs a load; default: a new interpreter.
    """
    for spec in specs:
        yield _check(spec, (run or _in_new_process)(spec.load))


def _check(spec: Spec, found: dict[str, Any] | list[float]) -> Check:
    if isinstance(found, dict):
        return Check(spec.name, spec.unit, None, None, spec.bound_pct, str(found["skipped"]))
    true, measured = found
    return Check(spec.name, spec.unit, true, measured, spec.bound_pct)


def _in_new_process(load: str) -> Any:
    # Not in /tmp of every machine: what lies in memory is never written to a disk.
    with tempfile.TemporaryDirectory(prefix=".mlflow-perf-selftest-", dir=_disk_folder()) as folder:
        command = [sys.executable, "-m", "mlflow_perf.selftest.loads", load, folder]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT_SEC, check=True
            )
            return json.loads(done.stdout)
        except (subprocess.SubprocessError, ValueError) as error:
            return {"skipped": str(error)}


def _disk_folder() -> str | None:
    """Return the first of the usual folders that lies on a disk, not in memory."""
    for folder in (tempfile.gettempdir(), "/var/tmp", "."):  # noqa: S108 - made private below it
        if not _in_memory(folder):
            return folder
    return None


def _in_memory(folder: str) -> bool:
    try:
        kinds = subprocess.run(
            ["stat", "--file-system", "--format=%T", folder],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return kinds.stdout.strip() in ("tmpfs", "ramfs", "overlayfs")


def passed(checks: Iterable[Check]) -> bool:
    """Return whether every check that could run is within its bound, and one could."""
    results = [check.passed for check in checks if check.passed is not None]
    return bool(results) and all(results)
