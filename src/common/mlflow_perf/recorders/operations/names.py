"""Operations as MLflow metrics: which, and under which keys. Imports only `stats`."""

from __future__ import annotations

import logging
import re
import sys
import zlib
from collections.abc import Mapping

from mlflow_perf.recorders.operations.stats import TimeStats

__all__ = ["MAX_OPERATIONS", "OTHER", "metric_name", "summary_metrics"]

OTHER = "other"
"""Name under which operations beyond the bound on names are summed up."""

MAX_OPERATIONS = 300
"""How many operations become metrics: with eight each, the page of a run still opens at once."""

_MAX_NAME = 200
_FORBIDDEN = re.compile(r"[^\w.\- /]", re.ASCII)
_logger = logging.getLogger(__name__)


def metric_name(name: str) -> str:
    """Return a name that MLflow takes within a metric's key.

    Characters that it refuses become `_`; empty parts and dots alone between slashes go; what is
    too long is cut and ends in a hash of the whole.
    """
    parts = [part.strip() for part in _FORBIDDEN.sub("_", name).split("/")]
    clean = "/".join(part for part in parts if part.strip(".")) or "_"
    if len(clean) <= _MAX_NAME:
        return clean
    return f"{clean[: _MAX_NAME - 9]}-{zlib.crc32(name.encode('utf-8', 'surrogatepass')):08x}"


def summary_metrics(
    times: Mapping[str, TimeStats], counters: Mapping[str, float]
) -> dict[str, float]:
    """Return `ops/<name>/…` for the operations with the most total time, and the counters.

    Names that become the same key are summed up.
    """
    sums: dict[str, TimeStats] = {}
    for name, stats in times.items():
        sums[metric_name(name)] = sums.get(metric_name(name), TimeStats()) + stats
    counts: dict[str, float] = {}
    for name, value in counters.items():
        counts[metric_name(name)] = counts.get(metric_name(name), 0) + value
    metrics: dict[str, float] = {}
    for name in _largest(sums):
        metrics |= _of(name, sums[name])
    # A name used for both keeps its number of times; the counter's sum is in the document.
    only = [name for name in counts if name not in sums]
    _warn_beyond(len(only), "counters were recorded: only the first %d become metrics")
    for name in only[:MAX_OPERATIONS]:
        metrics[f"ops/{name}/count"] = _as_float(counts[name])
    return metrics


def _as_float(number: float) -> float:
    """Return a number as a float; a sum that no float can hold becomes the largest of its sign."""
    try:
        return float(number)
    except OverflowError:
        return -sys.float_info.max if number < 0 else sys.float_info.max


def _largest(sums: Mapping[str, TimeStats]) -> list[str]:
    ordered = sorted(sums, key=lambda name: (-sums[name].total_time_ms, name))
    _warn_beyond(
        len(ordered),
        "operations were recorded: only the %d with the most total time become metrics",
    )
    return ordered[:MAX_OPERATIONS]


def _warn_beyond(count: int, what: str) -> None:
    if count > MAX_OPERATIONS:
        said = what % MAX_OPERATIONS
        _logger.warning("%d %s; all of them are in the document.", count, said)


def _of(name: str, stats: TimeStats) -> dict[str, float]:
    if not stats.count:
        return {}
    metrics = {
        "count": float(stats.count),
        "total_ms": stats.total_time_ms,
        "avg_ms": stats.avg_time_ms,
        "min_ms": stats.min_time_ms,
        "max_ms": stats.max_time_ms,
    }
    for percent in (50, 95, 99):
        estimate = stats.percentile(percent)
        if estimate is not None:
            metrics[f"p{percent}_ms"] = estimate
    return {f"ops/{name}/{figure}": value for figure, value in metrics.items()}
