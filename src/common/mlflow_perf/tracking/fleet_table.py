"""Yields a row of plain figures for each component of each run of a store, in batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.format import clean_metric_key
from mlflow_perf.model.metrics import METRICS, RUN_METRICS
from mlflow_perf.tracking.fleet_sql import list_further_components
from mlflow_perf.tracking.fleet_store import find_sql_store, read_figures
from mlflow_perf.tracking.fleet_sums import FIGURES, USER_TAG
from mlflow_perf.tracking.load import list_experiments, make_client
from mlflow_perf.tracking.perf_run import BEGAN_TAG, MEASURED_TAG, PARENT_TAG, TAG, PerfRun
from mlflow_perf.tracking.search import iterate_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

FIGURE_KEYS = (*FIGURES, *(one.key for one in METRICS), *(one.key for one in RUN_METRICS))
"""Names of the columns with a number."""

TEXT_KEYS = ("run_id", "name", "experiment", "user", "component", "status", "parent_run_id",
             "measured_by", "hostname", "held_back_by")  # fmt: skip
"""Names of the columns with a text."""

TIME_KEYS = ("started", "ended")
"""Names of the columns with a moment, Unix time in seconds."""

_AT_ONCE = 2000
_TAGS = tuple(
    f"{TAG}{name}"
    for name in ("component", "components", "status", "hostname", "bottleneck", "advice")
)


def iterate_rows(since: float | None = None) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of all active runs with performance data, some thousand at a time.

    A row has `TEXT_KEYS`, `TIME_KEYS` and `FIGURE_KEYS`; missing figures are None. Runs of
    several nodes have no figures of one node. The sums of `FIGURES` are those of `fleet`, once
    the rows are left out whose `measured_by` is the run of another row.

    Args:
        since: Only runs that started then or later, Unix time in seconds.

    Raises:
        RunNotFoundError: When the store does not answer.
    """
    client = make_client()
    experiments = list_experiments(client)
    since_ms = None if since is None else int(1000 * since)
    store = find_sql_store(client)
    if store is None:
        batches = _search_runs(client, list(experiments), since_ms)
    else:
        batches = _query_runs(store, list(experiments), since_ms)
    for runs in batches:
        yield [
            _make_row(client, run, own, experiments)
            for run in runs
            for known in [PerfRun.from_mlflow(run)]
            for own in (known, *known.components.values())
        ]


def _make_row(
    client: MlflowClient, run: Run, own: PerfRun, experiments: dict[str, str]
) -> dict[str, Any]:
    of_one_node = own.nodes.get(0, {})
    return {
        "run_id": own.run_id,
        "name": own.name,
        "experiment": experiments.get(str(own.experiment_id)),
        "user": own.tags.get(USER_TAG) or run.info.user_id,
        "component": own.component,
        "status": own.status,
        "parent_run_id": own.parent_id,
        "measured_by": own.tags.get(MEASURED_TAG) or None,
        "hostname": own.tags.get(f"{TAG}hostname"),
        "held_back_by": own.verdict or None,
        "started": own.started,
        "ended": own.ended,
        **{key: of_one_node.get(key, own.figures.get(key)) for key in FIGURE_KEYS},
        **read_figures(client, run, own),
    }


def _search_runs(
    client: MlflowClient, experiments: list[str], since_ms: int | None
) -> Iterator[list[Run]]:
    query = f"tags.`{TAG}component` LIKE '%'"
    query += "" if since_ms is None else f" and attributes.start_time >= {since_ms}"
    batch: list[Run] = []
    for run in iterate_runs(client, experiments, query):
        batch.append(run)
        if len(batch) == _AT_ONCE:
            yield batch
            batch = []
    yield batch


def _query_runs(store: Any, experiments: list[str], since_ms: int | None) -> Iterator[list[Run]]:
    """Yield the runs with those of their metrics and tags that the rows need."""
    from mlflow.entities import Metric, Run, RunData, RunInfo, RunTag
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import and_, select

    run, tag, metric = models.SqlRun, models.SqlTag, models.SqlLatestMetric
    has_component = and_(tag.run_uuid == run.run_uuid, tag.key == f"{TAG}component")
    chosen = (
        select(run.run_uuid, run.name, run.user_id, run.status, run.start_time, run.end_time,
               run.experiment_id)
        .join(tag, has_component)
        .where(run.lifecycle_stage == "active")
        .where(run.experiment_id.in_([int(one) for one in experiments]))
        .order_by(run.run_uuid)
        .limit(_AT_ONCE)
    )  # fmt: skip
    if since_ms is not None:
        chosen = chosen.where(run.start_time >= since_ms)
    with store.ManagedSessionMaker() as session:
        prefixes = ["", *(f"{clean_metric_key(n)}/" for n in list_further_components(session))]
    names = {key for one in FIGURES for key in (f"run_{one}", f"node_{one}")} | {*FIGURE_KEYS}
    wanted = {prefix + name for prefix in prefixes for name in names}
    last = ""
    while True:
        with store.ManagedSessionMaker() as session:
            rows = session.execute(chosen.where(run.run_uuid > last)).all()
            if not rows:
                return
            ids = rows[0].run_uuid, rows[-1].run_uuid
            metrics, tags = defaultdict(list), defaultdict(list)
            columns = (metric.run_uuid, metric.key, metric.value, metric.timestamp, metric.step)
            of_runs = select(*columns).where(metric.run_uuid.between(*ids), ~metric.is_nan)
            for owner, key, *figure in session.execute(of_runs):
                if key in wanted:
                    metrics[owner].append(Metric(key, *figure))
            keys = (*_TAGS, USER_TAG, PARENT_TAG, MEASURED_TAG, BEGAN_TAG)
            texts = select(tag.run_uuid, tag.key, tag.value)
            texts = texts.where(tag.run_uuid.between(*ids), tag.key.in_(keys))
            for owner, key, text in session.execute(texts):
                tags[owner].append(RunTag(key, text))
        last = ids[1]
        yield [
            Run(
                RunInfo(
                    row.run_uuid, str(row.experiment_id), row.user_id, row.status, row.start_time,
                    row.end_time, "active", run_name=row.name,
                ),
                RunData(metrics[row.run_uuid], [], tags[row.run_uuid]),
            )
            for row in rows
        ]  # fmt: skip
