"""Sorting events by their spans, however many they are, in memory that does not grow with them.

May import spans.bulk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from types import TracebackType

import numpy as np

from mlflow_perf.spans.database import bulk
from mlflow_perf.spans.database.bulk import Ints

__all__ = ["EventSorter"]

# Beyond this, some 350,000 events, they wait in a file.
_HELD_BYTES = 8 << 20
_RANGE_EVENTS = 100_000
_WIDTH = 3


class EventSorter:
    """Takes events in any order, and gives those of one range of spans after the other.

    Args:
        spans: The lowest and the highest number of the spans that have most of them.
        events: About how many there will be.
        folder: Where they wait when they are many; a system's own folder for such may be memory.
    """

    def __init__(self, spans: tuple[int, int], events: int, folder: Path) -> None:
        ranges = events // _RANGE_EVENTS + 1
        low, high = spans
        self._edges = low + np.arange(1, ranges) * (high - low + 1) // ranges
        self._places: list[list[tuple[int, int]]] = [[] for _ in range(ranges)]
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
        """Take some events: columns of span, time and type, which are sorted in place."""
        bulk.sort(rows)
        ends = np.searchsorted(rows[0], self._edges).tolist()
        for place, start, end in zip(self._places, [0, *ends], [*ends, rows.shape[1]], strict=True):
            if start < end:
                place.append((self._size, end - start))
                self._size += self._file.write(rows[:, start:end].tobytes())

    def ranges(self) -> Iterator[Ints]:
        """Yield the events of each range of spans, ascending; within one they are not sorted."""
        for places in self._places:
            rows = np.empty((_WIDTH, sum(count for _, count in places)), dtype=np.int64)
            at = 0
            for offset, count in places:
                self._file.seek(offset)
                data = self._file.read(count * rows.itemsize * _WIDTH)
                rows[:, at : at + count] = np.frombuffer(data, np.int64).reshape(_WIDTH, count)
                at += count
            if at:
                yield rows
