"""A store, runs logged in it, and the command line called in-process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from mlflow import MlflowClient

from mlflow_perf.cli import main
from mlflow_perf.model.document import NodeDocument, PerfDocument

NODE = {
    "duration_sec": 60.0,
    "cpu_avg_utilization_pct": 40.0,
    "cpu_limit_cores": 16.0,
    "mem_limit_mb": 65536.0,
    "node_cpu_hours": 0.2,
    "node_used_cpu_hours": 0.08,
    "node_unused_cpu_hours": 0.12,
    "max_t_mem_percent": 30.0,
    "job_max_mem_mb": 1537.0,
    "job_max_cpu_cores": 2.3,
    "job_cpu_avg_cores": 1.6,
    "ops/load/count": 3.0,
    "ops/load/total_ms": 12.3,
    "ops/load/avg_ms": 4.1,
}


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a tracking store; making one takes seconds, so it is shared."""
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


@pytest.fixture
def client(store: str, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """Return a client of the store, which is the default one during the test."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    return MlflowClient(store)


@pytest.fixture
def log_run(client: MlflowClient, tmp_path: Path) -> Callable[..., str]:
    """Return a maker of runs as the session logs them: metrics by node, documents, tags."""
    place = (tmp_path / "artifacts").as_uri()
    experiment = client.create_experiment(str(tmp_path), artifact_location=place)

    def log(
        *changes: Mapping[str, float],
        component: str = "train",
        status: str = "FINISHED",
        documents: bool = True,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        document = make_document(*changes, component=component)
        own = {"mlflow_perf.component": component} if changes else {}
        run = client.create_run(experiment, tags={**own, **(tags or {})}, run_name=component)
        run_id: str = run.info.run_id
        for index, node in document.nodes.items():
            for key, value in node.summary.items():
                client.log_metric(run_id, key, value, step=index)
            if documents:
                text = json.dumps(PerfDocument({index: node}).as_dict())
                client.log_text(run_id, text, f"perf/node-{index}.json")
        for key, value in document.run_summary.items():
            client.log_metric(run_id, key, value, step=0)
        if status != "RUNNING":
            client.set_terminated(run_id, status)
        return run_id

    return log


def make_document(*changes: Mapping[str, float], component: str = "train") -> PerfDocument:
    """Return a document with a node per change of the standard summary."""
    nodes = {
        i: NodeDocument(
            {"index": i, "count": len(changes), "hostname": f"host{i}", "cpu_count": 16},
            component=component,
            status="FINISHED",
            started=1000.0,
            duration_sec=60.0,
            summary={**NODE, **change},
            reports={"timestamp": [1000.0, 1001.0], "cpu_pct_per_cpu_avg": [10.0, 90.0]},
        )
        for i, change in enumerate(changes)
    }
    return PerfDocument(nodes)


@pytest.fixture
def write_document(tmp_path: Path) -> Callable[..., str]:
    """Return a maker of document files."""

    def write(*changes: Mapping[str, float], name: str = "doc", component: str = "train") -> str:
        document = make_document(*changes, component=component)
        return str(document.save(tmp_path / f"{name}.json"))

    return write


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a caller of the command line, in a folder of its own."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    # What `prepare` sets is taken back after the test.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")

    def call(*args: str, color: bool = False) -> Result:
        return CliRunner().invoke(main, list(args), color=color)

    return call


@pytest.fixture
def cli_json(cli: Callable[..., Result]) -> Callable[..., Any]:
    """Return a caller whose command must succeed and print JSON."""

    def call(*args: str) -> Any:
        result = cli(*args, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return call
