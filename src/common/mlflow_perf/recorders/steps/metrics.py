"""`StepMetrics`: the steps of all loops of a process, or of a job, by loop and rank."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from mlflow_perf.core.threads import RLock
from mlflow_perf.errors import DocumentError
from mlflow_perf.node.place import detect
from mlflow_perf.recorders.operations.names import metric_name
from mlflow_perf.recorders.steps.stats import LoopRecord, sum_ranks
from mlflow_perf.recorders.steps.step_spool import StepSpool

_MAX_LOOPS = 50
_OTHER = "other"
_ROWS_OF_ALL_RANKS = 960
_LEAST_ROWS = 24
_alive: weakref.WeakSet[StepMetrics] = weakref.WeakSet()


class Closable(Protocol):
    """A loop that runs."""

    def close(self) -> None:
        """End it."""
        ...

    def flush(self) -> None:
        """Hand over its steps so far."""
        ...


class StepMetrics:
    """Keeps the steps of loops, from any number of threads; each loop adds its own by pieces.

    Memory is bounded: loops beyond the first 50 names are summed up as `other`.
    """

    def __init__(self) -> None:
        # Reentrant: the collector of garbage may close a loop while its thread is inside.
        self._lock = RLock()
        self._spool: StepSpool | None = None
        self.forget()
        _alive.add(self)

    def forget(self) -> None:
        """Forget everything and write no more: a forked child's parent reports it."""
        self._spool = None
        self._records: dict[tuple[str, int], LoopRecord] = {}
        self._sources: set[str] = set()
        self._rank: int | None = None
        self._loops: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._fed: tuple[StepMetrics, ...] = ()

    def renew_lock(self) -> None:
        """Take a new lock: in a forked child, another thread may hold the old one."""
        self._lock = RLock()

    def follow(self, loop: Closable) -> None:
        """Let `close_loops` end a loop that the session's end, or the process's, cuts off."""
        self._loops.add(loop)

    def feed(self, other: StepMetrics) -> None:
        """Add each step from now on to other sums too: those of a part of the time."""
        self._flush_loops()
        with self._lock:
            self._fed = (*self._fed, other)

    def stop_feeding(self, other: StepMetrics) -> None:
        """Undo `feed`; what this process has written counts as collected there."""
        self._flush_loops()
        with self._lock:
            if self._spool is not None and self._spool.source is not None:
                other._sources.add(self._spool.source)
            self._fed = tuple(sums for sums in self._fed if sums is not other)

    def _flush_loops(self) -> None:
        """Take what the open loops hold, such as that of a booster whose model lives on."""
        for loop in list(self._loops):
            loop.flush()

    def close_loops(self) -> None:
        """End the loops that are still open, in whatever thread they run."""
        for loop in list(self._loops):
            loop.close()

    def find_rank(self) -> int:
        """Return the rank of this process in its job."""
        if self._rank is None:
            self._rank = detect().rank
        return self._rank

    def row_sec(self, name: str) -> float:
        """Return how much time a row of the course of a loop of this process is to hold."""
        record = self._records.get((name, self.find_rank()))
        return LoopRecord().course.row_sec if record is None else record.course.row_sec

    def add(self, name: str, piece: LoopRecord, rank: int | None = None) -> None:
        """Add some steps of a loop.

        Args:
            name: The loop.
            piece: Its steps.
            rank: Where they ran; default: the rank of this process.
        """
        rank = self.find_rank() if rank is None else rank
        with self._lock:
            key = name, rank
            if key not in self._records and len({loop for loop, _ in self._records}) >= _MAX_LOOPS:
                key = _OTHER, rank
            self._records.setdefault(key, LoopRecord()).merge(piece)
            if self._spool is not None:
                self._spool.add(name, rank, piece.as_dict(brief=True))
            fed = self._fed
        for other in fed:
            other.add(name, piece, rank)

    def merge_from(self, source: str, load: Callable[[], StepMetrics]) -> None:
        """Merge what a process has written, unless it is included already.

        Args:
            source: Name of the process's spool file.
            load: Reads what the process has written.
        """
        own = self._spool is not None and self._spool.source == source
        if own or source in self._sources:
            return
        loaded = load()
        with self._lock:
            self._sources.add(source)
            self.merge(loaded)

    def merge(self, other: StepMetrics) -> None:
        """Add everything that `other` has recorded."""
        for name, ranks in other.records().items():
            for rank, record in ranks.items():
                self.add(name, record, rank)

    def spool_to(self, folder: Path | None) -> None:
        """Write each piece to a file in a spool folder from now on; None ends the writing."""
        with self._lock:
            if self._spool is not None:
                self._spool.close()
                if self._spool.source is not None:
                    self._sources.add(self._spool.source)
            self._spool = None
            if folder is not None:
                self._spool = StepSpool(folder, partial(self.as_dict, whole=True))
                if not self.is_empty():
                    self._spool.write_all()

    def is_empty(self) -> bool:
        """Return whether nothing was recorded."""
        return not self._records

    def as_dict(self, *, whole: bool = False) -> dict[str, Any]:
        """Return the `steps` of a node's document: loop → `ranks` → rank → its record.

        Args:
            whole: Whether it is for a spool file: every row of the courses, however many ranks
                there are, and no figure that follows from others.
        """
        with self._lock:
            loops: dict[str, Any] = {}
            ranks = max(1, len({rank for _, rank in self._records}))
            most = None if whole else max(_LEAST_ROWS, _ROWS_OF_ALL_RANKS // ranks)
            for (name, rank), record in sorted(self._records.items()):
                ranks_of = loops.setdefault(name, {"ranks": {}})["ranks"]
                ranks_of[str(rank)] = record.as_dict(most_rows=most, brief=whole)
            return loops

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepMetrics:
        """Rebuild a recorder from `as_dict`.

        Raises:
            DocumentError: If this is not what `as_dict` wrote.
        """
        new = cls()
        try:
            for name, loop in data.items():
                for rank, record in loop["ranks"].items():
                    new._records[str(name), int(rank)] = LoopRecord.from_dict(record)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise DocumentError(f"The steps of loops cannot be read: {error!r}.") from error
        return new

    def records(self) -> dict[str, dict[int, LoopRecord]]:
        """Return loop → rank → its record, not copied."""
        found: dict[str, dict[int, LoopRecord]] = {}
        for (name, rank), record in sorted(self._records.items()):
            found.setdefault(name, {})[rank] = record
        return found

    def summary_metrics(self) -> dict[str, float]:
        """Return `steps/<loop>/…`: figures over all ranks of the node, by MLflow's rules.

        `count` is that of the rank with most steps, as ranks take their steps side by side.
        """
        metrics: dict[str, float] = {}
        for name, ranks in self.records().items():
            whole = sum_ranks(ranks)
            step = whole.step
            if not step.count:
                continue
            key = f"steps/{metric_name(name)}"
            p50, p95, p99 = step.percentiles((50, 95, 99))
            metrics[f"{key}/count"] = float(max(r.step.count for r in ranks.values()))
            metrics[f"{key}/mean_ms"] = step.mean_ms
            metrics[f"{key}/p50_ms"] = p50
            metrics[f"{key}/p95_ms"] = p95
            metrics[f"{key}/p99_ms"] = p99
            metrics[f"{key}/max_ms"] = step.max_ms
            parts_ms = whole.divide()
            waited = parts_ms["input"]
            metrics[f"{key}/input_pct"] = 100.0 * waited / step.mean_ms if step.mean_ms else 0.0
            for part, mean_ms in parts_ms.items():
                metrics[f"{key}/part/{metric_name(part)}_ms"] = mean_ms
        return metrics


def _renew_locks() -> None:
    for recorder in list(_alive):
        recorder.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
