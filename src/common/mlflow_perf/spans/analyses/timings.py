"""What the spans of a workflow tell: types, times between events, durations, concurrency.

May import errors, spans.schema, spans.columns. Every function takes a database's path or an open
connection, and returns plain data.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.event_arrays import Columns, Ints, Streams, columns_of
from mlflow_perf.spans.database.schema import reading

__all__ = [
    "DEFAULT_ROOT",
    "Database",
    "Row",
    "between",
    "concurrency",
    "durations",
    "load_streams",
    "matching_kinds",
    "running_count",
    "span_durations",
    "span_times",
    "statistics",
    "summary_of",
    "summary_of_concurrency",
    "types",
]

Database = str | Path | sqlite3.Connection
"""A spans database: its path, or an open connection to it."""

Row = dict[str, Any]
"""One row of an answer."""

DEFAULT_ROOT = "parsl.monitoring.task"


def types(db: Database) -> list[Row]:
    """Return each span type with how many spans and events it has: `type`, `spans`, `events`."""
    with reading(db) as connection:
        columns = columns_of(connection)
    kinds, spans = np.unique(columns.span_type, return_counts=True)
    events = np.bincount(
        np.searchsorted(kinds, columns.types_of(columns.event_span)), minlength=len(kinds)
    )
    rows = [
        {"type": columns.names[int(k)], "spans": int(s), "events": int(e)}
        for k, s, e in zip(kinds, spans, events, strict=True)
    ]
    return sorted(rows, key=lambda row: str(row["type"]))


def between(db: Database, start: str, end: str, *, root: str = DEFAULT_ROOT) -> list[Row]:
    """Return how long it took from one event to another, for each root span that has both.

    Args:
        db: The database.
        start: An event type (`invoked`), or a span type and an event type
            (`parsl.monitoring.task/invoked`). Of several, a root's first counts.
        end: Likewise.
        root: The type of the root spans; their subspans and facets belong to them.

    Returns:
        Rows of `start_s` (Unix time) and `duration_s` (negative where the end came first), in the
        order of start.

    Raises:
        SpansError: There are no spans of type `root`, or none of them has such an event.
    """
    streams = load_streams(db, root)
    begun, begins = _firsts(streams, start)
    ended, ends = _firsts(streams, end)
    _, left, right = np.intersect1d(begun, ended, assume_unique=True, return_indices=True)
    started, duration = begins[left], ends[right] - begins[left]
    return _time_rows(started, duration)


def durations(db: Database, root: str | None = None) -> list[Row]:
    """Return how long spans took, from their own first event to their own last, by type.

    Args:
        db: The database.
        root: One type; without it every type that has spans with two events or more.

    Returns:
        Rows of `type`, `count`, `total_s`, `mean_s`, `min_s`, `p50_s`, `p95_s`, `p99_s`, `max_s`.

    Raises:
        SpansError: There are no spans of type `root`.
    """
    with reading(db) as connection:
        columns = columns_of(connection)
    if root is not None:
        columns.check_type(root)
    spans, start, end = span_times(columns)
    kinds = columns.types_of(spans)
    rows = [
        {"type": columns.names[int(kind)], **statistics((end - start)[kinds == kind] / 1e6)}
        for kind in np.unique(kinds)
    ]
    chosen = [row for row in rows if root is None or row["type"] == root]
    return sorted(chosen, key=lambda row: str(row["type"]))


def span_durations(db: Database, root: str) -> list[Row]:
    """Return how long each span of a type took, as rows of `start_s` and `duration_s`.

    Raises:
        SpansError: There are no spans of type `root`.
    """
    with reading(db) as connection:
        columns = columns_of(connection)
    columns.check_type(root)
    spans, start, end = span_times(columns)
    chosen = columns.types_of(spans) == columns.number(root)
    return _time_rows(start[chosen], (end - start)[chosen])


def concurrency(
    db: Database,
    root: str = DEFAULT_ROOT,
    *,
    start: str | None = None,
    end: str | None = None,
) -> list[Row]:
    """Return how many root spans were under way at once, at each change.

    Args:
        db: The database.
        root: The type of the root spans.
        start: The event that begins each; default: its own first.
        end: The event that ends each; default: its own last.

    Returns:
        Rows of `time_s` (Unix time) and `spans`, in the order of time.

    Raises:
        SpansError: There are no such spans or events, or only one of `start` and `end` is given.
    """
    if (start is None) != (end is None):
        raise SpansError("Give both the event that begins and the one that ends, or neither.")
    if start is not None and end is not None:
        rows = between(db, start, end, root=root)
        begins = np.array([r["start_s"] * 1e6 for r in rows]).round().astype(np.int64)
        ends = begins + np.array([r["duration_s"] * 1e6 for r in rows]).round().astype(np.int64)
        begins, ends = begins[ends >= begins], ends[ends >= begins]
    else:
        with reading(db) as connection:
            columns = columns_of(connection)
        columns.check_type(root)
        spans, begins, ends = span_times(columns)
        chosen = columns.types_of(spans) == columns.number(root)
        begins, ends = begins[chosen], ends[chosen]
    times, counts = running_count(begins, ends)
    pairs = zip(times.tolist(), counts.tolist(), strict=True)
    return [{"time_s": time / 1e6, "spans": count} for time, count in pairs]


def running_count(begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return the times at which the number of what is under way changes, and the number from then.

    What ends in the microsecond in which another begins makes room for it.
    """
    times = np.concatenate([begins, ends])
    steps = np.repeat([1, -1], [len(begins), len(ends)])
    moments, place = np.unique(times, return_inverse=True)
    change = np.bincount(place, weights=steps, minlength=len(moments)).astype(np.int64)
    count = np.cumsum(change)
    kept = change != 0
    return moments[kept], count[kept]


def load_streams(db: Database, root: str) -> Streams:
    """Return the events of each span of type `root` and of all that belongs to it.

    Raises:
        SpansError: There are no such spans.
    """
    with reading(db) as connection:
        columns = columns_of(connection)
    columns.check_type(root)
    return columns.streams(root)


def matching_kinds(columns: Columns, event: str) -> Ints:
    """Return the codes of what `event` names: an event type, or a span type and an event type.

    Raises:
        SpansError: Nothing in the database is called that.
    """
    codes = [
        code
        for code, (span_type, event_type) in enumerate(columns.kinds)
        if event in (event_type, f"{span_type}/{event_type}")
    ]
    if not codes:
        known = ", ".join(sorted({name for _, name in columns.kinds})[:20])
        raise SpansError(f"There are no events of type {event!r}; there are: {known}.")
    return np.array(codes, dtype=np.int64)


def span_times(columns: Columns) -> tuple[Ints, Ints, Ints]:
    """Return the spans that have two events or more, with the time of their first and last."""
    first = np.flatnonzero(np.diff(columns.event_span, prepend=-1))
    last = np.append(first[1:], len(columns.event_span)) - 1
    timed = last > first
    first, last = first[timed], last[timed]
    return columns.event_span[first], columns.event_time[first], columns.event_time[last]


def statistics(seconds: npt.NDArray[np.float64]) -> Row:
    """Return count, sum, mean, extremes and percentiles of some times; the count alone of none."""
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


def summary_of(rows: list[Row]) -> Row:
    """Return the statistics of what `between` returned."""
    return statistics(np.array([row["duration_s"] for row in rows], dtype=np.float64))


def summary_of_concurrency(rows: list[Row]) -> Row:
    """Return the most spans at once, their mean over time, and how long any was under way."""
    time = np.array([row["time_s"] for row in rows], dtype=np.float64)
    spans = np.array([row["spans"] for row in rows], dtype=np.float64)
    length = np.diff(time)
    total = float(length.sum())
    return {
        "max": int(spans.max(initial=0)),
        "mean": float((spans[:-1] * length).sum() / total) if total else 0.0,
        "busy_s": float(length[spans[:-1] > 0].sum()),
        "total_s": total,
    }


def _time_rows(start: Ints, took: Ints) -> list[Row]:
    order = np.argsort(start, kind="stable")
    pairs = zip(start[order].tolist(), took[order].tolist(), strict=True)
    return [{"start_s": s / 1e6, "duration_s": d / 1e6} for s, d in pairs]


def _firsts(streams: Streams, event: str) -> tuple[Ints, Ints]:
    """Return the roots that have such an event, ascending, and the time of each one's first."""
    at = np.flatnonzero(np.isin(streams.kind, matching_kinds(streams.columns, event)))
    roots, first = np.unique(streams.root[at], return_index=True)
    return roots, streams.time[at[first]]
