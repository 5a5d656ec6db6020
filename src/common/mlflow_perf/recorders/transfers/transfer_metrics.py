"""Transfers in the document and as metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mlflow_perf.errors import DocumentError
from mlflow_perf.recorders.transfers.stats import NixlKVConnectorStats

__all__ = ["as_dict", "from_dict", "merge", "summary_metrics"]

_FORBIDDEN = re.compile(r"[^\w.\-]", re.ASCII)
_MAX_NAME = 100
_Named = Mapping[str, NixlKVConnectorStats]


def summary_metrics(name: str, stats: NixlKVConnectorStats) -> dict[str, float]:
    """Return the metrics `transfers/<name>/…`; none when nothing was recorded.

    Args:
        name: Name of the connector; characters that MLflow refuses in a key become `_`.
        stats: Its statistics.
    """
    if stats.is_empty():
        return {}
    clean = _FORBIDDEN.sub("_", name)[:_MAX_NAME].strip(".") or "_"
    return {f"transfers/{clean}/{figure}": value for figure, value in stats.figures().items()}


def as_dict(named: _Named) -> dict[str, Any]:
    """Return statistics by name for the document's `transfers`."""
    return {name: stats.as_dict() for name, stats in named.items()}


def from_dict(data: Any) -> dict[str, NixlKVConnectorStats]:
    """Read the document's `transfers`.

    Raises:
        DocumentError: If it is not what `as_dict` wrote.
    """
    if not isinstance(data, Mapping) or not all(isinstance(v, Mapping) for v in data.values()):
        raise DocumentError("The transfers of a document are not a JSON object of objects.")
    return {str(name): NixlKVConnectorStats(stats) for name, stats in data.items()}


def merge(left: _Named, right: _Named) -> dict[str, NixlKVConnectorStats]:
    """Return the sums of both by name; neither is changed."""
    sums = {name: NixlKVConnectorStats().aggregate(stats) for name, stats in left.items()}
    for name, stats in right.items():
        sums.setdefault(name, NixlKVConnectorStats()).aggregate(stats)
    return sums
