"""A session of this process, without a run, a sampler or a spool folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mlflow_perf.recorders import current
from mlflow_perf.recorders.operations import OperationMetrics
from mlflow_perf.recorders.steps import StepMetrics


@pytest.fixture
def session() -> Iterator[StepMetrics]:
    current.activate(OperationMetrics(), folder=None)
    recorder = current.process.steps
    assert recorder is not None
    yield recorder
    current.deactivate()
