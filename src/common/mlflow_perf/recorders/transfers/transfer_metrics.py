"""Transfers in the document and as metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mlflow_perf.recorders.transfers.stats import COUNTS, NixlKVConnectorStats

_FORBIDDEN = re.compile(r"[^\w.\-]", re.ASCII)
_MAX_NAME = 100
# Of which figures and counts each metric is made.
_NEEDS = {
    "num_successful": ["transfer_duration"],
    "avg_xfer_time_ms": ["transfer_duration"],
    "p90_xfer_time_ms": ["transfer_duration"],
    "avg_post_time_ms": ["post_duration"],
    "p90_post_time_ms": ["post_duration"],
    "avg_mb_per_transfer": ["bytes_transferred"],
    "throughput_mb_s": ["bytes_transferred", "transfer_duration"],
    "avg_num_descriptors": ["num_descriptors"],
    **{name: [name] for name in COUNTS},
}


def summary_metrics(name: str, stats: NixlKVConnectorStats) -> dict[str, float]:
    """Return the metrics `transfers/<name>/…` of a connector.

    There are none when nothing was recorded, and none of what the source does not publish.
    """
    if stats.is_empty():
        return {}
    clean = _FORBIDDEN.sub("_", name)[:_MAX_NAME].strip(".") or "_"
    return {
        f"transfers/{clean}/{figure}": value
        for figure, value in stats.figures().items()
        if stats.unknown.isdisjoint(_NEEDS[figure])
    }


def as_dict(named: Mapping[str, NixlKVConnectorStats]) -> dict[str, Any]:
    """Return statistics by name for the document's `transfers`."""
    return {name: stats.as_dict() for name, stats in named.items()}
