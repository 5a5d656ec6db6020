"""Operations: attributes, counters and times that any code of the job records."""

from __future__ import annotations

from mlflow_perf.recorders.operations.metrics import OperationMetrics
from mlflow_perf.recorders.operations.stats import Metrics, TimeStats
from mlflow_perf.recorders.operations.timer import OperationTimer, Timer

__all__ = ["Metrics", "OperationMetrics", "OperationTimer", "TimeStats", "Timer"]
