"""Where this process records: for its own session, into a spool file, or nowhere.

- A process with a session of its own calls `activate`.
- A forked child of it starts with empty recorders that write to a spool file.
- Any other process below the session finds the spool folder in the environment variable
  `MLFLOW_PERF_SPOOL` and writes to a spool file there.
"""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from mlflow_perf.core.environment import set_variable
from mlflow_perf.core.threads import Lock
from mlflow_perf.recorders.operations.metrics import OperationMetrics
from mlflow_perf.recorders.spool import VARIABLE
from mlflow_perf.recorders.steps.metrics import StepMetrics
from mlflow_perf.recorders.transfers.stats import NixlKVConnectorStats


@dataclass
class Recorders:
    """The recorders of a process.

    Attributes:
        operations: Where operations are recorded; None when the process belongs to no session.
        folder: Spool folder of the session; None when its other processes record nothing.
        spooled: Whether this process writes spool files itself.
        transfers: Sums of the transfers by name.
        outer: The recorders before the session of this process; None while it has no session.
        outer_variable: The environment variable `MLFLOW_PERF_SPOOL` before the session.
        lock: Guards `transfers`.
        steps: Where the steps of loops are recorded; None when the process belongs to no session.
    """

    operations: OperationMetrics | None = None
    folder: Path | None = None
    spooled: bool = False
    transfers: dict[str, NixlKVConnectorStats] = field(default_factory=dict)
    outer: Recorders | None = None
    outer_variable: str | None = None
    lock: threading.Lock = field(default_factory=Lock)
    steps: StepMetrics | None = None

    def spool_to(self, folder: Path | None) -> None:
        """Write all records to files in a spool folder from now on; None ends the writing."""
        self.spooled = folder is not None
        if self.operations is not None:
            self.operations.spool_to(folder)
        if self.steps is not None:
            self.steps.spool_to(folder)
        for name, stats in self.transfers.items():
            stats.spool_to(folder, name)


process = Recorders()
"""The recorders of this process now."""


def activate(operations: OperationMetrics, *, folder: Path | None, spooled: bool = False) -> None:
    """Begin the session of this process, and let the processes below it find the spool folder.

    Args:
        operations: Where this process records operations.
        folder: Where the processes below write their files; None when they are to record nothing.
        spooled: Whether this process writes there too: another one collects the records, or they
            must survive this process.
    """
    global process  # noqa: PLW0603 - a process has one session
    new = Recorders(operations, folder, outer=process.outer, outer_variable=process.outer_variable)
    new.steps = StepMetrics()
    if new.outer is None:
        new.outer, new.outer_variable = process, os.environ.get(VARIABLE)
    process = new
    set_variable(VARIABLE, None if folder is None else str(folder))
    if spooled:
        new.spool_to(folder)


def deactivate() -> Recorders:
    """End the session of this process and go back to the recorders before it.

    Returns:
        The recorders of the session; empty ones if there was none.
    """
    global process  # noqa: PLW0603 - a process has one session
    ended = process
    if ended.outer is None:
        return Recorders()
    if ended.steps is not None:
        ended.steps.close_loops()
    ended.spool_to(None)
    process = ended.outer
    set_variable(VARIABLE, ended.outer_variable)
    return ended


def recorder() -> OperationMetrics | None:
    """Return where this process records operations, or None when it belongs to no session."""
    return process.operations


def record_transfers(name: str = "nixl") -> NixlKVConnectorStats:
    """Return new statistics of transfers that also count for the current session.

    They can be reset, cloned and sent like any others: the session keeps its own sums. Without a
    session they are ordinary statistics.

    Args:
        name: Name of the connector in the report: `transfers/<name>/…`.
    """
    stats, now = NixlKVConnectorStats(), process
    if now.operations is None:
        return stats
    with now.lock:
        if name not in now.transfers:
            now.transfers[name] = NixlKVConnectorStats()
            now.transfers[name].spool_to(now.folder if now.spooled else None, name)
        return stats.feed(now.transfers[name])


def _after_fork() -> None:
    """Let a forked child write files of its own; its parent reports the records made before."""
    global process  # noqa: PLW0603 - a process has one session
    inherited = process
    for recorded in (inherited.operations, inherited.steps, *inherited.transfers.values()):
        if recorded is not None:
            recorded.forget()
    process = Recorders()
    if inherited.folder is not None:
        # Statistics that the child inherits go on feeding these sums.
        process = Recorders(inherited.operations, inherited.folder, transfers=inherited.transfers)
        process.steps = inherited.steps
        process.spool_to(inherited.folder)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
_folder = os.environ.get(VARIABLE)
if _folder and Path(_folder).is_dir():
    # Join the session of the process above.
    process = Recorders(OperationMetrics(), Path(_folder), steps=StepMetrics())
    process.spool_to(process.folder)
    atexit.register(process.steps.close_loops)  # type: ignore[union-attr]
