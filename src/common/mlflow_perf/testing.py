"""A fake clock, a fake reader and a recording sink, for our tests and those of our users."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mlflow_perf.model.columns import COLUMNS
from mlflow_perf.records import Column, Kind

__all__ = ["FakeClock", "FakeReader", "RecordingSink"]


class FakeClock:
    """A clock that moves only when a test moves it, or when somebody waits on it.

    Waiting moves the clock by the whole timeout at once, so that a sampler runs through simulated
    time as fast as it can. `stop_after` ends such a run.

    Args:
        now: Unix time at the start, in seconds.
        stop_after: Simulated seconds after which a wait finds its event set.
    """

    def __init__(self, now: float = 1_700_000_000.0, *, stop_after: float | None = None) -> None:
        self.now = now
        self.elapsed = 0.0
        self._stop_after = stop_after

    def time(self) -> float:
        """Return the simulated wall-clock time."""
        return self.now

    def monotonic(self) -> float:
        """Return the simulated seconds since the clock was made."""
        return self.elapsed

    def advance(self, seconds: float) -> None:
        """Let simulated time pass on both clocks."""
        self.now += seconds
        self.elapsed += seconds

    def wait(self, event: threading.Event, timeout_sec: float) -> bool:
        """Let the timeout pass and return whether the event is set."""
        if event.is_set():
            return True
        self.advance(timeout_sec)
        if self._stop_after is not None and self.elapsed >= self._stop_after:
            event.set()
        return event.is_set()


class FakeReader:
    """A reader that returns given rows, one per read, and raises an exception among them.

    Args:
        rows: The row that each `read` puts into the report; the last one is repeated.
        counters: Columns of the rows that are counters; those of our own columns are known, and
            so are the rates, which the first report of a block never has.
        name: The reader's name.
    """

    def __init__(
        self,
        rows: Iterable[Mapping[str, float] | BaseException | Callable[[], Mapping[str, float]]],
        *,
        counters: Sequence[str] = (),
        name: str = "fake",
    ) -> None:
        self.name = name
        self.closed = False
        self.reads = 0
        self._rows: Iterator[Any] = iter(rows)
        self._row: Any = {}
        known = (c for c in COLUMNS.values() if c.kind is Kind.COUNTER or c.is_rate)
        self.columns: Sequence[Column] = [
            *known,
            *(Column(column, Kind.COUNTER, "") for column in counters if column not in COLUMNS),
        ]

    def read(self, report: dict[str, float]) -> None:
        """Put the next row into the report."""
        self.reads += 1
        self._row = next(self._rows, self._row)
        if isinstance(self._row, BaseException):
            raise self._row
        report.update(self._row() if callable(self._row) else self._row)

    def close(self) -> None:
        """Remember that the reader was closed."""
        self.closed = True


class RecordingSink:
    """A sink that takes metrics as MLflow does and remembers them.

    Attributes:
        metrics: Each metric in the order of the calls: (key, value, step).
    """

    def __init__(self) -> None:
        self.metrics: list[tuple[str, float, int]] = []

    def log_metric(self, key: str, value: float, step: int = 0) -> None:
        """Remember one metric."""
        self.metrics.append((key, value, step))

    def of_node(self, node: int) -> dict[str, float]:
        """Return the metrics of one step: key → the last value."""
        return {key: value for key, value, step in self.metrics if step == node}
