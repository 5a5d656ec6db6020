"""In which orders events happen, how often each, and how long each step takes.

May import spans.analyses, spans.columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mlflow_perf.spans.analyses.timings import DEFAULT_ROOT, Database, Row, load_streams
from mlflow_perf.spans.database.event_arrays import Ints, Streams

__all__ = ["PERCENTILES", "sequences"]

PERCENTILES = (50, 95, 99)

_Floats = npt.NDArray[np.float64]


def sequences(
    db: Database,
    root: str = DEFAULT_ROOT,
    *,
    limit: int | None = None,
    percentiles: bool = False,
) -> list[Row]:
    """Return the orderings of events of the root spans, the most frequent first.

    Args:
        db: The database.
        root: The type of the root spans; their subspans and facets belong to them.
        limit: How many orderings; default: all.
        percentiles: Whether to add `p50_s`, `p95_s` and `p99_s` to each event.

    Returns:
        Rows of `count` and `events`: for each event of the ordering its `span_type` and
        `event_type`, the mean time since the first event (`cumulative_mean_s`), and the `mean_s`,
        `min_s` and `max_s` of the time since the event before.

    Raises:
        SpansError: There are no spans of type `root`.
    """
    streams = load_streams(db, root)
    if not len(streams.kind):
        return []
    starts = streams.starts
    lengths = np.diff(np.append(starts, len(streams.kind)))
    group, first, counts = _groups(streams, starts, lengths)
    ranked = np.lexsort((starts[first], -counts))[:limit]
    steps = _steps(streams, starts)
    return [
        _ordering(streams, steps, starts[group == g], lengths[first[g]], percentiles=percentiles)
        for g in ranked.tolist()
    ]


def _groups(streams: Streams, starts: Ints, lengths: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the ordering of each root, and for each ordering one of its roots and their number.

    An ordering is told by 64 random bits for each kind of event, weighted by its position.
    """
    bits = np.random.default_rng(0).integers(1, 1 << 63, len(streams.columns.kinds), np.uint64)
    position = np.arange(len(streams.kind)) - np.repeat(starts, lengths)
    powers = np.cumprod(np.full(int(lengths.max()), 0x9E3779B97F4A7C15, dtype=np.uint64))
    marks = np.add.reduceat(bits[streams.kind] * powers[position], starts)
    _, first, group, counts = np.unique(
        marks, return_index=True, return_inverse=True, return_counts=True
    )
    return group, first, counts


def _steps(streams: Streams, starts: Ints) -> _Floats:
    """Return the seconds since the event before of the same root; 0 for a root's first."""
    steps = np.diff(streams.time, prepend=streams.time[:1]) / 1e6
    steps[starts] = 0.0
    return steps


def _ordering(
    streams: Streams, steps: _Floats, starts: Ints, length: int, *, percentiles: bool
) -> Row:
    table = steps[starts[:, None] + np.arange(length)]
    kinds = [streams.columns.kinds[k] for k in streams.kind[starts[0] : starts[0] + length]]
    mean, low, high = table.mean(axis=0), table.min(axis=0), table.max(axis=0)
    total = np.cumsum(mean)
    events: list[dict[str, Any]] = [
        {
            "span_type": span_type,
            "event_type": event_type,
            "cumulative_mean_s": float(total[i]),
            "mean_s": float(mean[i]),
            "min_s": float(low[i]),
            "max_s": float(high[i]),
        }
        for i, (span_type, event_type) in enumerate(kinds)
    ]
    if percentiles:
        for which, values in zip(
            PERCENTILES, np.percentile(table, PERCENTILES, axis=0), strict=True
        ):
            for event, value in zip(events, values.tolist(), strict=True):
                event[f"p{which}_s"] = value
    return {"count": len(starts), "events": events}
