"""The tables of operations and transfers, from all nodes.

Both come from the metrics `ops/<name>/…` and `transfers/<name>/…` of the summary; the document's
own blocks replace missing ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlflow_perf.core.format import quantity
from mlflow_perf.core.json_io import read_numbers
from mlflow_perf.model.document import NodeDocument

MOST_ROWS = 200
"""Most operations that are shown; the rest is counted."""

Figures = dict[str, dict[str, float]]
"""Operation → figure → value, of one node."""

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
        numbers = {_ALIASES.get(k, k): v for k, v in read_numbers(stats).items()}
        if numbers:
            found[str(name)] = numbers
    for key, value in node.summary.items():
        if key.startswith(f"{prefix}/") and key.count("/") > 1:
            name, figure = key[len(prefix) + 1 :].rsplit("/", 1)
            found.setdefault(name, {})[figure] = value
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
    counts = {
        name: value
        for key, value in node.summary.items()
        if key.startswith("ops/") and key.endswith("/count") and (name := key[4:-6]) not in timed
    }
    return {**counts, **read_numbers(node.operations.get("counters"))}


def build_operation_table(nodes: Iterable[Figures]) -> dict[str, Any]:
    """Return the operations of all nodes, the longest in total first.

    Counts and totals are summed over the nodes; a percentile is that of the node where it is
    highest.

    Returns:
        `rows` (at most `MOST_ROWS`) with `name`, `count`, `total`, `avg`, `p50` … as texts and
        `share` in per cent of the longest total; `left_out`: how many more there are; `columns`:
        which percentiles and extremes any row has.
    """
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
    longest = order[0][1]["total_ms"] if order else 0.0
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
                "share": round(100.0 * total / longest, 1) if longest > 0 else 0.0,
                "sort": [count, total, mean or 0.0, *(stats.get(c) for c in columns)],
            }
        )
    return {
        "columns": [c.removesuffix("_ms") for c in columns],
        "rows": rows,
        "left_out": max(0, len(order) - MOST_ROWS),
    }


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
    return [
        {"name": name, "figures": [_format_transfer(key, value) for key, value in stats.items()]}
        for name, stats in sorted(merged.items())
    ]


def _format_transfer(key: str, value: float) -> tuple[str, str]:
    """Return the label and the text of a transfer's figure."""
    words = key.removeprefix("num_").replace("xfer", "transfer").split("_")
    while len(words) > 1 and words[-1] in ("ms", "mb", "s"):
        words.pop()
    label = " ".join(words).replace("avg mb per transfer", "size per transfer")
    unit = next((unit for end, unit in _TRANSFER_UNITS if key.endswith(end)), "")
    return label, quantity(value, unit)
