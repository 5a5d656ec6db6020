"""Transfers of key-value caches: vLLM's statistics of them, from every process of the job.

The package may import errors, clock, records, metric_table, node, sketch and spool.
"""

from __future__ import annotations

from mlflow_perf.recorders.transfers.current import activate, collect, deactivate, record
from mlflow_perf.recorders.transfers.stats import KVConnectorStats, NixlKVConnectorStats, Telemetry
from mlflow_perf.recorders.transfers.transfer_metrics import (
    as_dict,
    from_dict,
    merge,
    summary_metrics,
)

__all__ = [
    "KVConnectorStats",
    "NixlKVConnectorStats",
    "Telemetry",
    "activate",
    "as_dict",
    "collect",
    "deactivate",
    "from_dict",
    "merge",
    "record",
    "summary_metrics",
]
