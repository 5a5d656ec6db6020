"""A running job, from its metrics in MLflow.

MLflow's system metrics, which `live=True` sends too, become the curves that its report will have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from mlflow_perf.model.columns import SYSTEM_KEYS
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.tracking.fleet_sql import hold_figures
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.web.table import load_models

Sample = tuple[str, int, int, float]
"""Key, step, time in Unix milliseconds, and value."""

_MOST_SAMPLES = 40_000
_COLUMNS = {key: column for column, key in SYSTEM_KEYS.items()}
_FIGURES: dict[str, tuple[str, Callable[[Iterable[float]], float]]] = {
    "job_cpu_cores": ("job_cpu_avg_cores", fmean),
    "job_mem_mb": ("job_max_mem_mb", max),
    "cpu_pct_per_cpu_avg": ("cpu_avg_utilization_pct", fmean),
    "mem_percent": ("max_t_mem_percent", max),
}


def query_samples(store: Any, run_id: str) -> list[Sample]:
    """Return the newest system metrics of a run, oldest first; none if the store has no tables.

    Args:
        store: The server's tracking store.
        run_id: A run that the user may read.
    """
    models = load_models(store)
    if models is None:
        return []
    from sqlalchemy import select

    metric = models.SqlMetric
    query = select(metric.key, metric.step, metric.timestamp, metric.value)
    query = query.where(metric.run_uuid == run_id, *hold_figures(metric))
    query = query.where(metric.key.startswith("system/"))
    query = query.order_by(metric.timestamp.desc()).limit(_MOST_SAMPLES)
    with store.ManagedSessionMaker() as session:
        return [tuple(row) for row in reversed(session.execute(query).all())]


def build_live_nodes(run: PerfRun, samples: Iterable[Sample], now: float) -> list[NodeDocument]:
    """Return the known documents of the nodes of a running job.

    Args:
        run: The run.
        samples: Its system metrics, oldest first.
        now: Unix time in seconds.
    """
    found: dict[str, dict[int, dict[str, float]]] = {}
    for key, step, time_ms, value in samples:
        _, _, rest = key.partition("system/")
        node, _, name = rest.rpartition("/")
        row = found.setdefault(node, {}).setdefault(step, {})
        row["timestamp"] = time_ms / 1000.0
        row[_COLUMNS.get(name, name)] = value
    return [
        _build_node(run, index, node, list(rows.values()), now)
        for index, (node, rows) in enumerate(sorted(found.items()))
    ]


def _build_node(
    run: PerfRun, index: int, name: str, rows: Sequence[dict[str, float]], now: float
) -> NodeDocument:
    columns = {key for row in rows for key in row if key in SYSTEM_KEYS} | {"timestamp"}
    # A row whose second half is still on its way is left out.
    whole = [row for row in rows if columns <= row.keys()]
    reports = {column: [row[column] for row in whole] for column in sorted(columns)}
    started = run.started if run.started is not None else reports["timestamp"][0]
    reports["elapsed_sec"] = [time - started for time in reports["timestamp"]]
    summary = {"duration_sec": max(0.0, now - started)}
    for column, (key, combine) in _FIGURES.items():
        if values := reports.get(column):
            summary[key] = combine(values)
    facts = {"index": index, **({"hostname": name} if name and not name.isdecimal() else {})}
    return NodeDocument(
        facts,
        run.component,
        status="RUNNING",
        started=started,
        summary=summary,
        reports={column: [*values] for column, values in reports.items()},
    )
