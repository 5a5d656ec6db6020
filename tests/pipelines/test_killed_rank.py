"""A step whose process is killed: what it had reported by then is in its run all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_perf.cli import main

SCRIPT = """
import os, signal, time, mlflow_perf
from mlflow_perf.session.report import current
with mlflow_perf.report("killed", interval=0.05):
    time.sleep(0.3)
    current()._recording._journal.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
PIPELINE = """
from azure.ai.ml import command, dsl

step = command(code="{code}", command="python job.py", environment="x@latest", compute="local")

@dsl.pipeline(default_compute="local")
def killed():
    step()
"""


@pytest.mark.e2e
def test_a_killed_step_has_its_figures(tmp_path: Path) -> None:
    """SIGKILL in a step leaves a FAILED run with the metrics of what had run, and the cause."""
    from click.testing import CliRunner

    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "job.py").write_text(SCRIPT)
    file = tmp_path / "killed.py"
    file.write_text(PIPELINE.format(code=tmp_path / "code"))
    place = tmp_path / "place"
    result = CliRunner().invoke(main, ["pipeline", "run", str(file), "--to", str(place)])
    assert result.exit_code == 1, result.output
    client = MlflowClient(f"sqlite:///{place}/mlflow.db")
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    (child,) = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert child.info.status == "FAILED"
    assert child.data.metrics["duration_sec"] >= 0.25
    assert "killed" in child.data.tags["mlflow_perf.cause"]
