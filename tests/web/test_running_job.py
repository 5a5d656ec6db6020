"""A job that still runs, from its metrics so far."""

from __future__ import annotations

import time
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric
from tests.web.web_store import Filled, list_shown

from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.web.running_job import build_live_nodes


def test_samples_become_reports_by_node() -> None:
    """Each node's samples are rows; a row of which a part is still on its way is left out."""
    samples = [
        (f"system/{node}/{key}", step, 1000 * (100 + step), value)
        for node in ("0", "1")
        for step in range(3)
        for key, value in (("job_cpu_cores", 1.0 + step), ("cpu_utilization_percentage", 50.0))
    ]
    run = PerfRun("r", component="fit", started=90.0)
    nodes = build_live_nodes(run, samples[:-1], now=110.0)
    assert [node.node["index"] for node in nodes] == [0, 1]
    assert nodes[0].reports == {
        "timestamp": [100.0, 101.0, 102.0],
        "elapsed_sec": [10.0, 11.0, 12.0],
        "job_cpu_cores": [1.0, 2.0, 3.0],
        "cpu_pct_per_cpu_avg": [50.0, 50.0, 50.0],
    }
    assert len(nodes[1].reports["timestamp"]) == 2
    assert nodes[0].summary == {
        "duration_sec": 20.0,
        "job_cpu_avg_cores": 2.0,
        "cpu_avg_utilization_pct": 50.0,
    }


def test_a_running_job_is_listed_and_shown(client: Any, store: Filled) -> None:
    """A job with system metrics is in the list before it has reported, and its page has curves."""
    mlflow, now = MlflowClient(store.uri), int(time.time() * 1000)
    run_id = mlflow.create_run(store.experiments["forecast"], now - 60_000).info.run_id
    keys = {"system/job_cpu_cores": 1.5, "system/cpu_utilization_percentage": 70.0}
    metrics = [Metric(k, v, now - 50_000 + 1000 * i, i) for i in range(30) for k, v in keys.items()]
    try:
        mlflow.set_tag(run_id, "mlflow_perf.component", "live")
        mlflow.set_tag(run_id, "mlflow_perf.hostname", "node7")
        silent = client.get(f"/perf/run?id={run_id}&refresh=1")
        assert "No figures have come yet" in silent.text
        # The server cannot know whether the process lives.
        hint = "If its process was killed, `mlflow-perf recover` on node7 stores what it left."
        assert hint in silent.text
        assert "still going" not in silent.text
        assert silent.headers["Refresh"] == "5"
        mlflow.log_batch(run_id, [*metrics, Metric("auc", 0.875, now, 0)])
        assert list_shown(client.get("/perf?status=RUNNING").text) == [run_id]
        assert list_shown(client.get("/perf?filter=metrics.auc+>+0.5").text) == [run_id]
        assert list_shown(client.get("/perf?filter=metrics.auc+>+0.9").text) == []
        text = client.get(f"/perf/run?id={run_id}").text
        assert 'id="curves"' in text
        assert "metrics in MLflow so far" in text
        assert "What to ask for" not in text
        assert "0.875" in text
        assert "Refresh" not in client.get(f"/perf/run?id={run_id}").headers
        assert client.get(f"/perf/run?id={run_id}&refresh=1").headers["Refresh"] == "30"
    finally:
        mlflow.delete_run(run_id)
