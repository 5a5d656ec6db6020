"""The number of spans that run at the same time."""

from __future__ import annotations

import numpy as np

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.analyses.times import between
from mlflow_perf.spans.database.bulk import Ints
from mlflow_perf.spans.database.event_arrays import DEFAULT_ROOT, Row, read_columns
from mlflow_perf.spans.database.schema import Database


def concurrency(
    db: Database, root: str = DEFAULT_ROOT, *, start: str | None = None, end: str | None = None
) -> list[Row]:
    """Return how many root spans were under way at once, at each change.

    Args:
        db: The database.
        root: The type of the root spans.
        start: The event that begins a span; default: its own first.
        end: The event that ends it; default: its own last.

    Returns:
        Rows of `time_s` (Unix time) and `spans`, in time order.

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
        _, begins, ends = read_columns(db).timed_spans(root)
    times, counts = count_running(begins, ends)
    pairs = zip(times.tolist(), counts.tolist(), strict=True)
    return [{"time_s": time / 1e6, "spans": count} for time, count in pairs]


def count_running(begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return the times at which the number of running intervals changes, and the new numbers.

    An interval that ends in the microsecond in which another begins does not overlap it.
    """
    times = np.concatenate([begins, ends])
    steps = np.repeat([1, -1], [len(begins), len(ends)])
    moments, place = np.unique(times, return_inverse=True)
    change = np.bincount(place, weights=steps, minlength=len(moments)).astype(np.int64)
    kept = change != 0
    return moments[kept], np.cumsum(change)[kept]


def summarise_concurrency(rows: list[Row]) -> Row:
    """Return the maximum and the mean over time, the time with any span, and the whole time."""
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
