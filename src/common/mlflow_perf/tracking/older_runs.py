"""Documents for runs without one, from their metrics (one node per step) and saved curves."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.model.metrics import METRICS
from mlflow_perf.tracking.pools import map_beside

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_THREADS = 8


def make_older_document(client: MlflowClient, run: Run, saved: PerfDocument) -> PerfDocument:
    """Return the document of a run that logged metrics with a step for each node.

    Args:
        client: A client of the store.
        run: The run.
        saved: The reports that the run saved; empty if it saved none. Figures from them count more
            than logged ones: lightgbm-benchmark logged totals since boot.

    Raises:
        MlflowException: When the store does not answer.
    """
    keys = [metric.key for metric in METRICS if metric.key in run.data.metrics]
    logged: dict[int, dict[str, float]] = {}
    get_history = partial(client.get_metric_history, run.info.run_id)
    histories = map_beside(get_history, keys, threads=_THREADS)
    for key, history in zip(keys, histories, strict=True):
        for metric in history:
            logged.setdefault(metric.step, {})[key] = metric.value
    nodes = {}
    for index in sorted(logged.keys() | saved.nodes.keys()):
        node = saved.nodes.get(index) or NodeDocument()
        node.summary = {**logged.get(index, {}), **node.summary}
        node.node = {"index": index, "count": len(logged)} | node.node
        node.run_id = run.info.run_id
        node.component = node.component or run.info.run_name
        node.status = node.status or run.info.status
        if node.started is None and run.info.start_time is not None:
            node.started = run.info.start_time / 1000
        if node.duration_sec is None:
            node.duration_sec = node.summary.get("duration_sec")
        nodes[index] = node
    return PerfDocument(nodes)
