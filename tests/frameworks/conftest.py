"""A session without a run, and the integrations switched on for the length of a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mlflow_perf.integrations import training
from mlflow_perf.recorders import current
from mlflow_perf.recorders.operations import OperationMetrics
from mlflow_perf.recorders.steps import StepMetrics


@pytest.fixture
def session() -> Iterator[StepMetrics]:
    training.enable()
    current.activate(OperationMetrics(), folder=None)
    recorder = current.process.steps
    assert recorder is not None
    yield recorder
    current.deactivate()
    training.disable()
