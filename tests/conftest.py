"""Fixtures for all tests: nothing leaks out of one, and nothing of this machine leaks in."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")

# The machines that run the tests are shared: a slow example is no fault.
settings.register_profile("shared", deadline=None, max_examples=50)
settings.load_profile("shared")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take our own and MLflow's run variables out of the environment; keep state in tmp_path."""
    for name in list(os.environ):
        if name.startswith("MLFLOW_PERF_") or name in ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path / "mlflow-perf-journal"))


@pytest.fixture(autouse=True)
def _no_leaked_sampler() -> Iterator[None]:
    """Fail the test that leaves a sampler thread alive."""
    yield
    left = [t.name for t in threading.enumerate() if t.name.startswith("mlflow-perf")]
    assert not left, f"threads left alive: {left}"
