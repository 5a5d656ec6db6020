"""The tables of operations and transfers, from all nodes.

Both come from the metrics `ops/<name>/…` and `transfers/<name>/…` of the summary; the document's
own blocks replace missing ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from mlflow_perf.core.format import quantity
from mlflow_perf.core.json_io import read_numbers
from mlflow_perf.errors import DocumentError
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.model.sketch import Sketch
from mlflow_perf.recorders.operations.names import metric_name

MOST_ROWS = 200
"""Most operations that are shown; the rest is counted."""

Figures = dict[str, dict[str, float]]
"""Operation → figure → value, for one node."""

_COLUMNS = ("p50_ms", "p95_ms", "p99_ms", "min_ms", "max_ms")
_ALIASES = {f"{name}_time_ms": f"{name}_ms" for name in ("avg", "min", "max", "p50", "p95", "p99")}
_TRANSFER_UNITS = (("_ms", "ms"), ("mb_s", "MB/s"), ("_mb", "MB"), ("mb_per_transfer", "MB"))
_SUMMED = ("num_", "count", "total")


def read_figures(node: NodeDocument, prefix: str) -> Figures:
    """Return the figures of a node's operations (`ops`) or transfers (`transfers`)."""
    block = node.operations if prefix == "ops" else node.transfers
    found: Figures = {}
    nested = block.get("times")
    for name, stats in (nested if isinstance(nested, dict) else block).items():
        # A count or a time below zero is of no recorder: it is absent.
        numbers = {_ALIASES.get(k, k): v for k, v in read_numbers(stats).items() if v >= 0}
        if numbers:
            found[str(name)] = numbers
    in_keys: dict[str, list[str]] = {}
    for name in found:
        in_keys.setdefault(metric_name(name), []).append(name)
    for key, value in node.summary.items():
        if key.startswith(f"{prefix}/") and key.count("/") > 1:
            name, figure = key[len(prefix) + 1 :].rsplit("/", 1)
            own = in_keys.get(name, [name])
            # A key that several names share has their sum, which is no row of its own.
            if len(own) == 1:
                found.setdefault(own[0], {})[figure] = value
    if prefix != "ops":
        return found
    # An operation without times is a counter.
    return {k: v for k, v in found.items() if any(figure.endswith("_ms") for figure in v)}


def read_counters(node: NodeDocument, timed: Figures) -> dict[str, float]:
    """Return a node's counters by name.

    Args:
        node: The node.
        timed: Its operations from `read_figures`; their counts are no counters.
    """
    counters = read_numbers(node.operations.get("counters"))
    known = {metric_name(name) for name in (*timed, *counters)}
    counts = {
        name: value
        for key, value in node.summary.items()
        if key.startswith("ops/") and key.endswith("/count") and (name := key[4:-6]) not in known
    }
    return {**counts, **counters}


class Places:
    """When each operation ran, over all nodes, and the distribution of its times."""

    def __init__(self) -> None:
        self.spans: dict[str, tuple[float, float]] = {}
        self.sketches: dict[str, Sketch | None] = {}

    def add(self, node: NodeDocument) -> None:
        """Add the operations in a node's document."""
        times, sketches = (node.operations.get(name) for name in ("times", "sketches"))
        for name, stats in times.items() if isinstance(times, dict) else ():
            found = read_numbers(stats)
            ended, took_ms = found.get("last_timestamp"), found.get("last_ms")
            if ended is not None and took_ms is not None and found.get("count") == 1:
                begin, end = self.spans.get(name, (math.inf, -math.inf))
                span = min(begin, ended - took_ms / 1000), max(end, ended)
                self.spans[name] = span
            try:
                sketch = Sketch.from_dict(sketches[name]) if isinstance(sketches, dict) else None
            except (DocumentError, KeyError, TypeError, AttributeError):  # of another version
                sketch = None
            before = self.sketches.setdefault(name, Sketch())
            if before is None or sketch is None:
                self.sketches[name] = None
            else:
                before.merge(sketch)

    def percentiles(self, name: str) -> dict[str, float]:
        """Return the percentiles over all calls on all nodes; none where a node has no sketch."""
        sketch = self.sketches.get(name)
        if sketch is None or not sketch.count:
            return {}
        return dict(
            zip(("p50_ms", "p95_ms", "p99_ms"), sketch.percentiles((50, 95, 99)), strict=True)
        )


def build_operation_table(
    nodes: Sequence[Figures],
    places: Places | None = None,
    *,
    started: float = 0.0,
    duration_sec: float = 0.0,
) -> dict[str, Any]:
    """Return the operations of all nodes, the longest in total first.

    Percentiles are of all calls; if a node's distribution is missing, the highest of any node.

    Args:
        nodes: The figures of each node.
        places: When they ran; default: unknown.
        started: Unix time at which the run began.
        duration_sec: How long it took; 0.0 if unknown.

    Returns:
        `rows` (at most `MOST_ROWS`) with texts, `share` in per cent of the run's time on all nodes,
        and `place` (left and width in per cent of the run) if it ran once per node; `left_out`:
        the number of further rows; `columns`: percentiles and extremes that some row has.
    """
    places = places or Places()
    merged: Figures = {}
    for figures in nodes:
        for name, stats in figures.items():
            into = merged.setdefault(name, {"count": 0.0, "total_ms": 0.0})
            count = stats.get("count", 0.0)
            into["count"] += count
            into["total_ms"] += stats.get("total_ms", stats.get("avg_ms", 0.0) * count)
            for column in _COLUMNS:
                if column in stats:
                    choose = min if column == "min_ms" else max
                    into[column] = choose(into.get(column, stats[column]), stats[column])
    order = sorted(merged.items(), key=lambda item: -item[1]["total_ms"])
    for name, stats in merged.items() if len(nodes) > 1 else ():
        stats.update(places.percentiles(name))
    whole_ms = 1000.0 * duration_sec * max(1, len(nodes))
    columns = [c for c in _COLUMNS if any(c in stats for stats in merged.values())]
    rows = []
    for name, stats in order[:MOST_ROWS]:
        count, total = stats["count"], stats["total_ms"]
        mean = total / count if count else None
        rows.append(
            {
                "name": name,
                "count": quantity(count, ""),
                "total": quantity(total, "ms"),
                "avg": quantity(mean, "ms"),
                "figures": [quantity(stats.get(c), "ms") for c in columns],
                "share": round(100.0 * total / whole_ms, 1) if whole_ms > 0 else None,
                "place": _place(places.spans.get(name), started, duration_sec),
                "sort": [count, total, mean or 0.0, *(stats.get(c) for c in columns)],
            }
        )
    return {
        "columns": [c.removesuffix("_ms") for c in columns],
        "rows": rows,
        "left_out": max(0, len(order) - MOST_ROWS),
    }


def _place(
    span: tuple[float, float] | None, started: float, duration_sec: float
) -> tuple[float, float] | None:
    """Return where a span of time is in the run: left and width in per cent."""
    if span is None or duration_sec <= 0:
        return None
    left = min(100.0, max(0.0, 100 * (span[0] - started) / duration_sec))
    width = min(100.0 - left, max(0.0, 100 * (span[1] - span[0]) / duration_sec))
    return round(left, 2), round(width, 2)


def build_transfers(nodes: Iterable[Figures]) -> list[dict[str, Any]]:
    """Return the transfers of all nodes: `name` and `figures` (label, text) of each.

    Counts are summed over the nodes; averages and percentiles are those of the highest node.
    """
    merged: Figures = {}
    for figures in nodes:
        for name, stats in figures.items():
            into = merged.setdefault(name, {})
            for key, value in stats.items():
                if key.startswith(_SUMMED):
                    into[key] = into.get(key, 0.0) + value
                else:
                    into[key] = max(into.get(key, value), value)
    rows = []
    for name, stats in sorted(merged.items()):
        texts = []
        for key, value in stats.items():
            words = key.removeprefix("num_").replace("xfer", "transfer").split("_")
            while len(words) > 1 and words[-1] in ("ms", "mb", "s"):
                words.pop()
            label = " ".join(words).replace("avg mb per transfer", "size per transfer")
            unit = next((unit for end, unit in _TRANSFER_UNITS if key.endswith(end)), "")
            texts.append((label, quantity(value, unit)))
        rows.append({"name": name, "figures": texts})
    return rows
