"""Reading performance data back: from MLflow runs, documents and folders.

The only place that reads performance data from MLflow, which is imported when a run is asked for.
May import errors, document, metric_table and summary.
"""

from __future__ import annotations

from mlflow_perf.runs.find import children, find_runs, get_run, get_runs, watch
from mlflow_perf.runs.run import PerfRun
from mlflow_perf.runs.source import Source, documents_of, is_run_id, load, save

__all__ = [
    "PerfRun",
    "Source",
    "children",
    "documents_of",
    "find_runs",
    "get_run",
    "get_runs",
    "is_run_id",
    "load",
    "save",
    "watch",
]
