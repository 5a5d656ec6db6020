"""The durations of spans, and the times from one event to another."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.bulk import Ints
from mlflow_perf.spans.database.event_arrays import (
    DEFAULT_ROOT,
    Row,
    Streams,
    read_columns,
    read_streams,
)
from mlflow_perf.spans.database.schema import Database


def between(db: Database, start: str, end: str, *, root: str = DEFAULT_ROOT) -> list[Row]:
    """Return how long it took from one event to another, for each root span that has both.

    Args:
        db: The database.
        start: An event type (`invoked`), or a span type and an event type
            (`parsl.monitoring.task/invoked`). The first such event of a root counts.
        end: Likewise.
        root: The type of the root spans; their subspans and facets belong to them.

    Returns:
        Rows of `start_s` (Unix time) and `duration_s` (negative if the end came first), ordered by
        start.

    Raises:
        SpansError: There are no spans of type `root`, or none of them has such an event.
    """
    streams = read_streams(db, root)
    begun, begins = _find_first(streams, start)
    ended, ends = _find_first(streams, end)
    _, left, right = np.intersect1d(begun, ended, assume_unique=True, return_indices=True)
    return _to_rows(begins[left], ends[right] - begins[left])


def durations(db: Database, root: str | None = None) -> list[Row]:
    """Return how long spans took, from their own first event to their own last, by type.

    Args:
        db: The database.
        root: One type; default: every type that has spans with two or more events.

    Returns:
        Rows of `type`, `count`, `total_s`, `mean_s`, `min_s`, `p50_s`, `p95_s`, `p99_s`, `max_s`.

    Raises:
        SpansError: There are no spans of type `root`.
    """
    columns = read_columns(db)
    spans, start, end = columns.timed_spans(root)
    types, seconds = columns.type_by_span[spans], (end - start) / 1e6
    rows = [
        {"type": columns.names[number], **_summarise(seconds[types == number])}
        for number in np.unique(types).tolist()
    ]
    return sorted(rows, key=lambda row: str(row["type"]))


def span_durations(db: Database, root: str) -> list[Row]:
    """Return how long each span of a type took, as rows of `start_s` and `duration_s`.

    Raises:
        SpansError: There are no spans of type `root`.
    """
    _, start, end = read_columns(db).timed_spans(root)
    return _to_rows(start, end - start)


def summarise_times(rows: list[Row]) -> Row:
    """Return the statistics of the rows that `between` returned."""
    return _summarise(np.array([row["duration_s"] for row in rows], dtype=np.float64))


def _summarise(seconds: npt.NDArray[np.float64]) -> Row:
    """Return count, sum, mean, extremes and percentiles; of no times only the count."""
    if not len(seconds):
        return {"count": 0}
    p50, p95, p99 = np.percentile(seconds, (50, 95, 99))
    return {
        "count": len(seconds),
        "total_s": float(seconds.sum()),
        "mean_s": float(seconds.mean()),
        "min_s": float(seconds.min()),
        "p50_s": float(p50),
        "p95_s": float(p95),
        "p99_s": float(p99),
        "max_s": float(seconds.max()),
    }


def _to_rows(start: Ints, took: Ints) -> list[Row]:
    order = np.argsort(start, kind="stable")
    pairs = zip(start[order].tolist(), took[order].tolist(), strict=True)
    return [{"start_s": s / 1e6, "duration_s": d / 1e6} for s, d in pairs]


def _find_first(streams: Streams, event: str) -> tuple[Ints, Ints]:
    """Return the roots that have an event, ascending, and the time of the first one of each.

    Raises:
        SpansError: The database has no such event.
    """
    kinds = streams.kinds
    codes = [
        code
        for code, (span_type, event_type) in enumerate(kinds)
        if event in (event_type, f"{span_type}/{event_type}")
    ]
    if not codes:
        known = ", ".join(sorted({name for _, name in kinds})[:20])
        raise SpansError(f"There are no events of type {event!r}; there are: {known}.")
    at = np.flatnonzero(np.isin(streams.kind, codes))
    roots, first = np.unique(streams.root[at], return_index=True)
    return roots, streams.time[at[first]]
