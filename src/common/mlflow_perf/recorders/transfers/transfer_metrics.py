"""Transfers in the document and as metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mlflow_perf.recorders.transfers.stats import NixlKVConnectorStats

_FORBIDDEN = re.compile(r"[^\w.\-]", re.ASCII)
_MAX_NAME = 100


def summary_metrics(name: str, stats: NixlKVConnectorStats) -> dict[str, float]:
    """Return the metrics `transfers/<name>/…` of a connector; none when nothing was recorded."""
    if stats.is_empty():
        return {}
    clean = _FORBIDDEN.sub("_", name)[:_MAX_NAME].strip(".") or "_"
    return {f"transfers/{clean}/{figure}": value for figure, value in stats.figures().items()}


def as_dict(named: Mapping[str, NixlKVConnectorStats]) -> dict[str, Any]:
    """Return statistics by name for the document's `transfers`."""
    return {name: stats.as_dict() for name, stats in named.items()}
