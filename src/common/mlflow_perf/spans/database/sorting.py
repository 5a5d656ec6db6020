"""Sorting any number of events by their spans, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from types import TracebackType

import numpy as np

from mlflow_perf.spans.database import bulk
from mlflow_perf.spans.database.bulk import Ints

__all__ = ["EventSorter"]

# Some 350,000 events; more wait in a file.
_HELD_BYTES = 8 << 20
_RANGE_EVENTS = 100_000
_WIDTH = 3


class EventSorter:
    """Takes events in any order, and gives them back by ascending ranges of spans.

    Args:
        spans: The lowest and the highest span number of most events.
        events: Roughly how many events there will be.
        folder: Where to keep the file of waiting events; the system's own folder may be in memory.
    """

    def __init__(self, spans: tuple[int, int], events: int, folder: Path) -> None:
        ranges = events // _RANGE_EVENTS + 1
        low, high = spans
        self._edges = low + np.arange(1, ranges) * (high - low + 1) // ranges
        # For each range, the file offset and number of events of each piece of it.
        self._pieces: list[list[tuple[int, int]]] = [[] for _ in range(ranges)]
        self._file = SpooledTemporaryFile(_HELD_BYTES, dir=str(folder))  # noqa: SIM115 - closed by __exit__
        self._size = 0

    def __enter__(self) -> EventSorter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, rows: Ints) -> None:
        """Add events: columns of span, time and type. The array is sorted in place."""
        bulk.sort(rows)
        ends = np.searchsorted(rows[0], self._edges).tolist()
        bounds = zip(self._pieces, [0, *ends], [*ends, rows.shape[1]], strict=True)
        for pieces, start, end in bounds:
            if start < end:
                pieces.append((self._size, end - start))
                self._size += self._file.write(rows[:, start:end].tobytes())

    def ranges(self) -> Iterator[Ints]:
        """Yield the events of each range of spans, ascending; a range itself is not sorted."""
        for pieces in self._pieces:
            rows = np.empty((_WIDTH, sum(count for _, count in pieces)), dtype=np.int64)
            at = 0
            for offset, count in pieces:
                self._file.seek(offset)
                data = self._file.read(count * rows.itemsize * _WIDTH)
                rows[:, at : at + count] = np.frombuffer(data, np.int64).reshape(_WIDTH, count)
                at += count
            if at:
                yield rows
