"""A component inside an Azure ML job: its snapshot in an empty folder, with what Azure sets.

The tracking server is MLflow's own. What only a workspace has, its authentication above all, is
named in `docs/azure-ml.md`.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("azure.ai.ml")

from azure.ai.ml import load_component
from mlflow import MlflowClient

from mlflow_perf.pipelines.snapshot import copy_code
from mlflow_perf.pipelines.values import fill_command

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.e2e


def _run_as_azure(name: str, folder: Path, run_id: str, root: str, **inputs: str | None) -> None:
    """Run a component's command as a job of Azure ML does: in the snapshot, and nowhere else."""
    component: Any = load_component(str(ROOT / "components" / name / "component.yaml"))
    base = Path(component.base_path)
    includes = tuple((base / i).resolve() for i in component.additional_includes)
    copy_code(base, includes, folder / name)
    outputs = {key: str(folder / f"{name}-{key}") for key in component.outputs}
    for path in outputs.values():
        Path(path).mkdir()
    given = {key: inputs.get(key) for key in component.inputs}
    words = shlex.split(fill_command(component.command, inputs=given, outputs=outputs))
    environ = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    environ |= {
        "MLFLOW_TRACKING_URI": os.environ["MLFLOW_TRACKING_URI"],
        "MLFLOW_RUN_ID": run_id,
        "MLFLOW_EXPERIMENT_NAME": "Default",
        "AZUREML_RUN_ID": run_id,
        "AZUREML_ROOT_RUN_ID": root,
        "AZUREML_NODE_COUNT": "2",
        "AZ_BATCH_NODE_LIST": "10.0.0.4;10.0.0.5",
        "AZ_BATCHAI_NODE_IP": "10.0.0.5",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    done = subprocess.run(
        [sys.executable, *words[1:]], cwd=folder / name, env=environ,
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_environment_leads_to_run_node_and_parent(server: str, tmp_path: Path) -> None:
    """Figures are logged at the node's step of the job's run, which Azure ends."""
    client = MlflowClient(server)
    parent = client.create_run("0", run_name="the pipeline").info.run_id
    child = {"mlflow.parentRunId": parent}
    step, last = (client.create_run("0", tags=child, run_name=n).info.run_id for n in "ab")
    _run_as_azure("template", tmp_path, step, parent, data=str(tmp_path))
    run = client.get_run(step)
    assert run.info.status == "RUNNING"
    assert [m.step for m in client.get_metric_history(step, "duration_sec")] == [1]
    tags = {key: run.data.tags.get(f"mlflow_perf.{key}") for key in ("job_id", "launcher", "nodes")}
    assert tags == {"job_id": step, "launcher": "azureml", "nodes": "2"}
    assert (tmp_path / "template-result" / "names.txt").exists()

    defaults = {"verbose": "False", "custom_properties": None, "after_1": str(tmp_path)}
    _run_as_azure("perf_report", tmp_path, last, parent, **defaults)
    assert _artifacts(client, parent) == {"perf/workflow.json", "perf_report.html"}
    assert "[Report]" in client.get_run(parent).data.tags["mlflow.note.content"]
    flow = json.loads((tmp_path / "perf_report-report" / "workflow.json").read_text())
    assert "a" in json.dumps(flow["steps"])


def _artifacts(client: Any, run_id: str) -> set[str]:
    top = [f.path for f in client.list_artifacts(run_id) if not f.is_dir]
    return {*top, *(f.path for f in client.list_artifacts(run_id, "perf"))}
