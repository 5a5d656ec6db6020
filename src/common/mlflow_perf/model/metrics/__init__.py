"""The metrics: key, unit, source, formula and meaning of each, in one table.

The summary computes from this table and the docs print it; a test keeps them equal.
"""

from __future__ import annotations

import re

from mlflow_perf.model.metrics.formulas import SHARE_COLUMN, SHARE_THRESHOLDS_PCT, Figures
from mlflow_perf.model.metrics.names import group_metric, name_metric
from mlflow_perf.model.metrics.node_metrics import METRICS, Metric, make_gpu_metrics
from mlflow_perf.model.metrics.run_metrics import RUN_METRICS, RunMetric

__all__ = [
    "METRICS",
    "RUN_METRICS",
    "SHARE_COLUMN",
    "SHARE_THRESHOLDS_PCT",
    "Figures",
    "Metric",
    "RunMetric",
    "find_metric",
    "group_metric",
    "make_gpu_metrics",
    "name_metric",
]

_OF_ONE_GPU = re.compile(r"gpu(\d+)_")
_BY_KEY: dict[str, Metric | RunMetric] = {
    **{metric.key: metric for metric in METRICS},
    **{metric.key: metric for metric in RUN_METRICS},
}


def find_metric(key: str) -> Metric | RunMetric | None:
    """Return the table's row for a key, or None if the key is not in the table."""
    row = _BY_KEY.get(key)
    if row is None and (found := _OF_ONE_GPU.match(key)):
        return next((metric for metric in make_gpu_metrics(found[1]) if metric.key == key), None)
    return row
