"""Where transfers of this process go now: to the session, to a spool file, or nowhere.

Imports only spool and the rest of this package. It works as `operations.context` does.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from mlflow_perf.recorders import spool
from mlflow_perf.recorders.transfers.stats import NixlKVConnectorStats
from mlflow_perf.recorders.transfers.transfer_spool import TransferSpool, read

__all__ = ["activate", "collect", "deactivate", "record"]


class _State:
    """What this process has recorded for its session."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.active = False
        self.folder: Path | None = None
        self.spooled = False
        self.named: dict[str, tuple[NixlKVConnectorStats, TransferSpool | None]] = {}

    def named_stats(self, name: str) -> NixlKVConnectorStats:
        """Return the sums under a name, which write to a spool file where this process is to."""
        with self.lock:
            if name not in self.named:
                stats = NixlKVConnectorStats()
                journal = None
                if self.spooled and self.folder is not None:
                    journal = TransferSpool(self.folder, name, stats)
                    stats.attach(journal)
                self.named[name] = stats, journal
            return self.named[name][0]

    def begin(self, folder: Path | None, *, active: bool, spooled: bool) -> None:
        """Forget everything, and record anew for another session or as another process."""
        self.lock = threading.Lock()
        for stats, _ in self.named.values():
            stats.forget()
        self.named = {}
        self.active, self.folder, self.spooled = active, folder, spooled


_state = _State()


def activate(folder: Path | None, *, spooled: bool = False) -> None:
    """Let transfers of this process count for a session from now on.

    Args:
        folder: The session's spool folder, named to the processes below by `operations.context`.
        spooled: Whether this process writes there itself: it is not the one that collects.
    """
    _state.begin(folder, active=True, spooled=spooled)


def deactivate() -> None:
    """Let transfers count for no session, or again for that of a process above."""
    _join()


def record(name: str = "nixl") -> NixlKVConnectorStats:
    """Return new statistics whose every record counts for the current session too, under a name.

    They can be reset, cloned and sent like any others: the session keeps sums of its own. Without
    a session they are just statistics.
    """
    stats = NixlKVConnectorStats()
    return stats.feed(_state.named_stats(name)) if _state.active else stats


def collect(folder: Path | None = None) -> dict[str, NixlKVConnectorStats]:
    """Return the sums of all processes of the session by name; call it before `deactivate`.

    Args:
        folder: The spool folder; None for those of this process alone.
    """
    with _state.lock:
        own = dict(_state.named)
    sums = {name: NixlKVConnectorStats().aggregate(stats) for name, (stats, _) in own.items()}
    sources = {journal.source for _, journal in own.values() if journal is not None}
    for source, name, stats in read(folder) if folder is not None else ():
        if source not in sources:
            sums.setdefault(name, NixlKVConnectorStats()).aggregate(stats)
    return {name: stats for name, stats in sums.items() if not stats.is_empty()}


def _after_fork() -> None:
    # Statistics that the child inherits feed sums that begin anew under the same names.
    inherited = dict(_state.named)
    _state.begin(_state.folder, active=_state.active and _state.folder is not None, spooled=True)
    if not _state.active or _state.folder is None:
        return
    for name, (stats, _) in inherited.items():
        journal = TransferSpool(_state.folder, name, stats)
        stats.attach(journal)
        _state.named[name] = stats, journal


def _join() -> None:
    """Join the session of the process above, where there is one."""
    folder = os.environ.get(spool.VARIABLE)
    joined = bool(folder) and Path(str(folder)).is_dir()
    _state.begin(Path(str(folder)) if joined else None, active=joined, spooled=joined)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
_join()
