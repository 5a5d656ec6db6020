"""Documents and logged runs for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Mapping

from mlflow import MlflowClient

from mlflow_perf.model.document import NodeDocument, PerfDocument

NODE = {"duration_sec": 10.0, "node_cpu_hours": 1.0, "node_used_cpu_hours": 0.5}


def document(*summaries: Mapping[str, float], component: str = "train") -> PerfDocument:
    """Return a document of nodes with these summaries."""
    nodes = {
        i: NodeDocument(
            {"index": i, "count": len(summaries), "hostname": f"host{i}", "cpu_count": 4},
            component=component,
            status="FINISHED",
            started=1000.0,
            duration_sec=s.get("duration_sec", 10.0),
            summary=dict(s),
        )
        for i, s in enumerate(summaries)
    }
    return PerfDocument(nodes)


def log_run(
    client: MlflowClient,
    experiment: str,
    doc: PerfDocument,
    *,
    component: str = "train",
    tags: Mapping[str, str] | None = None,
    folder: str = "perf",
) -> str:
    """Log a document as the session does, and return the run's id."""
    all_tags = {"mlflow_perf.component": component, "mlflow_perf.version": "0", **(tags or {})}
    run = client.create_run(experiment, tags=all_tags, run_name=component)
    run_id = str(run.info.run_id)
    for index, node in doc.nodes.items():
        for key, value in node.summary.items():
            client.log_metric(run_id, key, value, step=index)
        text = json.dumps(PerfDocument({index: node}).as_dict())
        client.log_text(run_id, text, f"{folder}/node-{index}.json")
    for key, value in doc.run_summary.items():
        client.log_metric(run_id, key, value, step=0)
    client.set_terminated(run_id)
    return run_id
