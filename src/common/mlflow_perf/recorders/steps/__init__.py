"""Steps of loops: how long each pass took, what it waited for, and its parts."""

from __future__ import annotations

from mlflow_perf.recorders.steps.loop import part
from mlflow_perf.recorders.steps.metrics import StepMetrics
from mlflow_perf.recorders.steps.passes import Steps, steps

__all__ = ["StepMetrics", "Steps", "part", "steps"]
