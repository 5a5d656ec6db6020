"""The tables of operations and transfers, from all nodes. Imports the document only.

Both come from the metrics `ops/<name>/…` and `transfers/<name>/…` of the summary, and from the
document's own blocks where the summary lacks them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mlflow_perf.core.format import quantity
from mlflow_perf.core.json_io import read_numbers
from mlflow_perf.model.document import NodeDocument

__all__ = ["MOST_ROWS", "Figures", "counters_of", "figures_in", "operation_rows", "transfer_rows"]

MOST_ROWS = 200
"""Most operations that are shown; the rest is counted."""

Figures = dict[str, dict[str, float]]
"""Operation → figure → value, of one node."""

_COLUMNS = ("p50_ms", "p95_ms", "p99_ms", "min_ms", "max_ms")
_ALIASES = {
    "avg_time_ms": "avg_ms",
    "min_time_ms": "min_ms",
    "max_time_ms": "max_ms",
    "p50_time_ms": "p50_ms",
    "p95_time_ms": "p95_ms",
    "p99_time_ms": "p99_ms",
}


def figures_in(node: NodeDocument, prefix: str) -> Figures:
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
    return found if prefix != "ops" else {k: v for k, v in found.items() if _is_timed(v)}


def _is_timed(stats: Mapping[str, float]) -> bool:
    """Return whether a name was timed; what was only counted stands among the counters."""
    return any(key.endswith("_ms") for key in stats)


def counters_of(node: NodeDocument, timed: Figures) -> dict[str, float]:
    """Return a node's counters by name.

    Args:
        node: The node.
        timed: Its operations, as `figures_in` returns them; their counts are no counters.
    """
    counts = {
        key[4:-6]: value
        for key, value in node.summary.items()
        if key.startswith("ops/") and key.endswith("/count")
    }
    only_counted = {name: value for name, value in counts.items() if name not in timed}
    return {**only_counted, **read_numbers(node.operations.get("counters"))}


def operation_rows(nodes: Iterable[Figures]) -> dict[str, Any]:
    """Return the operations of all nodes, the longest in total first.

    Counts and totals are summed over the nodes; a percentile is that of the node where it is
    highest.

    Returns:
        `rows` (at most `MOST_ROWS`) with `name`, `count`, `total`, `avg`, `p50` … as texts and
        `share` in per cent of the longest total; `left_out`: how many more there are; `columns`:
        which percentiles and extremes any row has.
    """
    merged: dict[str, dict[str, float]] = {}
    for figures in nodes:
        for name, stats in figures.items():
            _merge(merged.setdefault(name, {}), stats)
    order = sorted(merged.items(), key=lambda item: -_total(item[1]))
    longest = max((_total(stats) for stats in merged.values()), default=0.0)
    columns = [c for c in _COLUMNS if any(c in stats for stats in merged.values())]
    return {
        "columns": [c.removesuffix("_ms") for c in columns],
        "rows": [_row(name, stats, columns, longest) for name, stats in order[:MOST_ROWS]],
        "left_out": max(0, len(order) - MOST_ROWS),
    }


def _merge(into: dict[str, float], stats: Mapping[str, float]) -> None:
    into["count"] = into.get("count", 0.0) + stats.get("count", 0.0)
    into["total_ms"] = into.get("total_ms", 0.0) + _total(stats)
    for name in _COLUMNS:
        if name in stats:
            best = min if name == "min_ms" else max
            into[name] = best(into.get(name, stats[name]), stats[name])


def _total(stats: Mapping[str, float]) -> float:
    if "total_ms" in stats:
        return stats["total_ms"]
    return stats.get("avg_ms", 0.0) * stats.get("count", 0.0)


def _row(
    name: str, stats: Mapping[str, float], columns: list[str], longest: float
) -> dict[str, Any]:
    count, total = stats.get("count", 0.0), _total(stats)
    return {
        "name": name,
        "count": quantity(count, ""),
        "total": quantity(total, "ms"),
        "avg": quantity(total / count if count else None, "ms"),
        "figures": [quantity(stats.get(c), "ms") for c in columns],
        "share": round(100.0 * total / longest, 1) if longest > 0 else 0.0,
        "sort": [count, total, total / count if count else 0.0, *(stats.get(c) for c in columns)],
    }


_TRANSFER_UNITS = (("_ms", "ms"), ("mb_s", "MB/s"), ("_mb", "MB"), ("mb_per_transfer", "MB"))
_SUMMED = ("num_", "count", "total")


def transfer_rows(nodes: Iterable[Figures]) -> list[dict[str, Any]]:
    """Return the transfers of all nodes: `name` and `figures` (label, text) of each.

    What is counted is summed over the nodes; of averages and percentiles the highest node's stands.
    """
    merged: dict[str, dict[str, float]] = {}
    for figures in nodes:
        for name, stats in figures.items():
            into = merged.setdefault(name, {})
            for key, value in stats.items():
                summed = key.startswith(_SUMMED)
                into[key] = (
                    into.get(key, 0.0) + value if summed else max(into.get(key, value), value)
                )
    return [
        {"name": name, "figures": [(_label(k), _text(k, v)) for k, v in stats.items()]}
        for name, stats in sorted(merged.items())
    ]


def _label(key: str) -> str:
    words = key.removeprefix("num_").replace("xfer", "transfer").split("_")
    units = {"ms", "mb", "s"}
    while len(words) > 1 and words[-1] in units:
        words.pop()
    return " ".join(words).replace("avg mb per transfer", "size per transfer")


def _text(key: str, value: float) -> str:
    unit = next((unit for end, unit in _TRANSFER_UNITS if key.endswith(end)), "")
    return quantity(value, unit)
