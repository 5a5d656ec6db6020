"""The overview of the fleet gives the advice that the command line gives."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, RunTag
from tests.web.web_store import Filled

from mlflow_perf.analysis.component_history import find_component_runs
from mlflow_perf.analysis.fleet import RUNS_OF_EACH, build_digest
from mlflow_perf.analysis.rightsize import right_size
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.batches import select_metrics
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.web import fleet_views
from mlflow_perf.web.access import Access

# Two children that got less than a CPU on a full node, beside a wrapper that loads MLflow.
NODE = {
    "duration_sec": 60.0, "cpu_limit_cores": 2.0, "mem_limit_mb": 24_106.0,
    "node_cpu_hours": 4000.0, "node_unused_cpu_hours": 3000.0,
    "job_cpu_avg_cores": 0.54, "job_max_cpu_cores": 0.8, "job_run_delay_pct": 75.3,
    "job_threads_max": 4.0, "job_voluntary_switches": 60_000.0, "job_processes_avg": 2.7,
    "job_ran_beside_pct": 4.0, "job_max_mem_mb": 33.0, "perf_mem_mb": 230.0,
    "perf_mem_beside_mb": 34.0,
}  # fmt: skip


@pytest.fixture
def wrapped(client: Any, store: Filled, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs of one component with documents and the metrics that MLflow gets by default."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    monkeypatch.setattr(fleet_views, "_READ_SEC", 60.0)
    mlflow, now, made = MlflowClient(store.uri), int(time.time() * 1000), []
    for i in range(3):
        summary = {**NODE, "perf_mem_mb": 200.0 + 10 * i}
        run = mlflow.create_run(store.experiments["forecast"], now - 3_600_000 + i)
        ours = {"component": "wrapped", "bottleneck": "cpu", "advice": "Others use this node."}
        figures = {**select_metrics(summary), "run_unused_cpu_hours": 3000.0, "run_node_count": 1.0,
                   "run_cpu_hours": 4000.0, "run_duration_sec": 60.0}  # fmt: skip
        mlflow.log_batch(
            run.info.run_id,
            [Metric(key, value, now, 0) for key, value in figures.items()],
            tags=[RunTag(f"mlflow_perf.{key}", value) for key, value in ours.items()],
        )
        node = NodeDocument({"index": 0}, "wrapped", duration_sec=60.0, summary=summary)
        text = json.dumps(PerfDocument({0: node}).as_dict())
        mlflow.log_text(run.info.run_id, text, "perf/node-0.json")
        mlflow.set_terminated(run.info.run_id, "FINISHED", now)
        made.append(run.info.run_id)
    yield
    for run_id in made:
        mlflow.delete_run(run_id)


@pytest.mark.usefixtures("wrapped")
def test_the_page_the_digest_and_advise_give_the_same_numbers(client: Any) -> None:
    """The metrics alone would say one CPU and 128 MB, less than the runs used."""
    size = right_size(find_component_runs("wrapped", last=RUNS_OF_EACH, documents=True))
    assert (size.cpus, size.memory_mb) == (2, 320)
    said = f"3 of its newest 3 runs: cpu. Ask for {size.cpus} CPUs and {size.memory_mb} MB. Others"
    assert said in " ".join(build_digest("component").advice)
    assert said in html.unescape(client.get("/perf/fleet?since=7d").text)


@pytest.mark.usefixtures("wrapped")
def test_a_slow_store_gets_advice_from_fewer_documents(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the time is up, the metrics of the others count, and the numbers are lower bounds."""
    read: list[str] = []
    with_document = Access.with_document

    def count(access: Access, run: PerfRun) -> PerfRun:
        read.append(str(run.component))
        return with_document(access, run)

    monkeypatch.setattr(Access, "with_document", count)
    monkeypatch.setattr(fleet_views, "_READ_SEC", 0.0)
    text = html.unescape(client.get("/perf/fleet?since=7d").text)
    assert read.count("wrapped") == 1
    assert "3 of its newest 3 runs: cpu. Ask for at least 2 CPUs and 384 MB. Others" in text
    monkeypatch.setattr(fleet_views, "_MOST_NODES", 0)
    text = html.unescape(client.get("/perf/fleet?since=7d").text)
    assert "3 of its newest 3 runs: cpu. Ask for at least 1 CPU and 128 MB" in text
