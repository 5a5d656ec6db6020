"""Operations as MLflow metrics: which operations, and under which keys."""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Mapping

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.recorders.operations.stats import TimeStats

OTHER = "other"
"""Name under which operations beyond the bound on names are summed up."""

MAX_OPERATIONS = 300
"""How many operations become metrics. With eight metrics each, a run's page still opens at once."""

_MAX_NAME = 200
_FORBIDDEN = re.compile(r"[^\w.\- /]", re.ASCII)
_logger = get_logger(__name__)


def metric_name(name: str) -> str:
    """Return a name that MLflow accepts within a metric's key.

    Characters that MLflow refuses become `_`. Parts between slashes that are empty or only dots are
    dropped. A name that is too long is cut and ends in a hash of the whole name.
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
    counted = [name for name in counts if name not in sums]
    if hidden := counts.keys() & sums.keys():
        _logger.warning(
            "Counters with the name of a timed operation are in the document only: %s.",
            ", ".join(sorted(hidden)[:5]),
        )
    for kind, number, kept in (
        ("operations", len(sums), "with the most total time"),
        ("counters", len(counted), "recorded first"),
    ):
        if number > MAX_OPERATIONS:
            _logger.warning(
                "%d %s were recorded: only the %d %s become metrics; all of them are in the "
                "document.", number, kind, MAX_OPERATIONS, kept,
            )  # fmt: skip
    metrics: dict[str, float] = {}
    ordered = sorted(sums, key=lambda name: (-sums[name].total_time_ms, name))
    for name in ordered[:MAX_OPERATIONS]:
        if not (stats := sums[name]).count:
            continue
        metrics |= {
            f"ops/{name}/count": float(stats.count),
            f"ops/{name}/total_ms": stats.total_time_ms,
            f"ops/{name}/avg_ms": stats.avg_time_ms,
            f"ops/{name}/min_ms": stats.min_time_ms,
            f"ops/{name}/max_ms": stats.max_time_ms,
        }
        for percent in (50, 95, 99):
            if (estimate := stats.percentile(percent)) is not None:
                metrics[f"ops/{name}/p{percent}_ms"] = estimate
    for name in counted[:MAX_OPERATIONS]:
        # A sum that no float can hold becomes the largest of its sign.
        largest = sys.float_info.max
        metrics[f"ops/{name}/count"] = float(min(max(counts[name], -largest), largest))
    return metrics
