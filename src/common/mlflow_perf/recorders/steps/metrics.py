"""`StepMetrics`: the steps of all loops of a process, or of a job, by loop and rank."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from mlflow_perf.errors import DocumentError
from mlflow_perf.node.place import detect
from mlflow_perf.recorders.operations.names import metric_name
from mlflow_perf.recorders.record_spool import RecordSpool, SpooledRecorder
from mlflow_perf.recorders.spool import BLOB
from mlflow_perf.recorders.steps.stats import LoopRecord, sum_ranks

KIND = "steps"
"""First part of the names of the spool files."""

PIECE = BLOB
"""Kind of the record of some steps of a loop: its name, the rank, and the steps."""

_MAX_LOOPS = 50
_OTHER = "other"
_ROWS_OF_ALL_RANKS = 960
_LEAST_ROWS = 24


class Closable(Protocol):
    """A loop that runs."""

    def close(self) -> None:
        """End it."""
        ...

    def flush(self) -> None:
        """Hand over its steps so far."""
        ...


class StepMetrics(SpooledRecorder):
    """Keeps the steps of loops, from any number of threads; each loop adds its own by pieces.

    Memory is bounded: loops beyond the first 50 names are summed up as `other`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        """Forget everything and write no more: a forked child's parent reports it."""
        self._spool: RecordSpool | None = None
        self._records: dict[tuple[str, int], LoopRecord] = {}
        self._sources: set[str] = set()
        self._rank: int | None = None
        self._loops: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._fed: tuple[StepMetrics, ...] = ()

    def follow(self, loop: Closable) -> None:
        """Let `close_loops` end a loop that the session's end, or the process's, cuts off."""
        self._loops.add(loop)

    def feed(self, other: StepMetrics) -> None:
        """Add each step from now on to other sums too: those of a part of the time."""
        self._flush_loops()
        with self._lock:
            self._fed = (*self._fed, other)

    def stop_feeding(self, other: StepMetrics) -> None:
        """Undo `feed`; the records that this process has written count as collected there."""
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
        """Add some steps of a loop that ran on `rank`; default: the rank of this process."""
        rank = self.find_rank() if rank is None else rank
        with self._lock:
            key = name, rank
            if key not in self._records and len({loop for loop, _ in self._records}) >= _MAX_LOOPS:
                key = _OTHER, rank
            self._records.setdefault(key, LoopRecord()).merge(piece)
            if self._spool is not None:
                self._spool.write(PIECE, 0, [name, rank, piece.as_dict(brief=True)])
            fed = self._fed
        for other in fed:
            other.add(name, piece, rank)

    def merge(self, other: StepMetrics) -> None:
        """Add everything that `other` has recorded."""
        for name, ranks in other.records().items():
            for rank, record in ranks.items():
                self.add(name, record, rank)

    def make_spool(self, folder: Path) -> RecordSpool:
        """Return the spool of this recorder, which takes the steps of about a second at a time."""
        return RecordSpool(folder, KIND, "Steps", partial(self.as_dict, whole=True))

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
            parts_ms = whole.divide()
            p50, p95, p99 = step.percentiles((50, 95, 99))
            figures = {
                "count": float(max(r.step.count for r in ranks.values())),
                "mean_ms": step.mean_ms,
                "p50_ms": p50,
                "p95_ms": p95,
                "p99_ms": p99,
                "max_ms": step.max_ms,
                "input_pct": 100.0 * parts_ms["input"] / step.mean_ms if step.mean_ms else 0.0,
                **{f"part/{metric_name(part)}_ms": mean for part, mean in parts_ms.items()},
            }
            metrics |= {f"steps/{metric_name(name)}/{key}": v for key, v in figures.items()}
        return metrics
