"""Steps of loops: how long each pass took, what it waited for, and its parts."""

from __future__ import annotations

from mlflow_perf.recorders.steps.loop import Steps, part, steps
from mlflow_perf.recorders.steps.metrics import StepMetrics

__all__ = ["StepMetrics", "Steps", "part", "steps"]
