"""The sequences of events, how often each occurs, and how long each step takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlflow_perf.spans.database.event_arrays import DEFAULT_ROOT, Row, read_streams
from mlflow_perf.spans.database.schema import Database

PERCENTILES = (50, 95, 99)


def sequences(
    db: Database, root: str = DEFAULT_ROOT, *, limit: int | None = None, percentiles: bool = False
) -> list[Row]:
    """Return the sequences of events of the root spans, the most frequent first.

    Args:
        db: The database.
        root: The type of the root spans; their subspans and facets belong to them.
        limit: How many sequences; default: all.
        percentiles: Whether to add `p50_s`, `p95_s` and `p99_s` to each event.

    Returns:
        Rows of `count` and `events`: for each event of the sequence its `span_type` and
        `event_type`, the mean time since the first event (`cumulative_mean_s`), and the `mean_s`,
        `min_s` and `max_s` of the time since the previous event.

    Raises:
        SpansError: There are no spans of type `root`.
    """
    streams = read_streams(db, root)
    if not len(streams.kind):
        return []
    starts = streams.starts
    lengths = np.diff(np.append(starts, len(streams.kind)))
    # Roots have the same sequence if they have the same hash: 64 random bits for each kind of
    # event, weighted by its position.
    bits = np.random.default_rng(0).integers(1, 1 << 63, len(streams.kinds), np.uint64)
    position = np.arange(len(streams.kind)) - np.repeat(starts, lengths)
    powers = np.cumprod(np.full(int(lengths.max()), 0x9E3779B97F4A7C15, dtype=np.uint64))
    hashes = np.add.reduceat(bits[streams.kind] * powers[position], starts)
    _, first, sequence, counts = np.unique(
        hashes, return_index=True, return_inverse=True, return_counts=True
    )
    # The seconds since the previous event of the same root; 0 for its first event.
    steps = np.diff(streams.time, prepend=streams.time[:1]) / 1e6
    steps[starts] = 0.0
    rows = []
    for number in np.lexsort((starts[first], -counts))[:limit].tolist():
        begin, length = starts[first[number]], lengths[first[number]]
        table = steps[starts[sequence == number][:, None] + np.arange(length)]
        mean = table.mean(axis=0)
        columns = {
            "cumulative_mean_s": np.cumsum(mean),
            "mean_s": mean,
            "min_s": table.min(axis=0),
            "max_s": table.max(axis=0),
        }
        if percentiles:
            values = np.percentile(table, PERCENTILES, axis=0)
            columns |= {f"p{p}_s": row for p, row in zip(PERCENTILES, values, strict=True)}
        events: list[dict[str, Any]] = []
        for i, code in enumerate(streams.kind[begin : begin + length].tolist()):
            span_type, event_type = streams.kinds[code]
            times = {name: float(column[i]) for name, column in columns.items()}
            events.append({"span_type": span_type, "event_type": event_type, **times})
        rows.append({"count": len(table), "events": events})
    return rows
