"""Transfers of key-value caches: vLLM's statistics of them, from every process of the job."""

from __future__ import annotations

from mlflow_perf.recorders.transfers.stats import KVConnectorStats, NixlKVConnectorStats, Telemetry
from mlflow_perf.recorders.transfers.transfer_metrics import as_dict, summary_metrics

__all__ = ["KVConnectorStats", "NixlKVConnectorStats", "Telemetry", "as_dict", "summary_metrics"]
