"""Write many finished runs at once, because MLflow's calls for single runs are too slow.

Where MLflow keeps its runs in a SQL database that this process can reach, the rows of a few hundred
runs are written in one transaction, through the classes that MLflow has for its own tables. Any
other store gets three requests per run, from several threads.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.format import clean_metric_key
from mlflow_perf.tracking.batches import clean_text
from mlflow_perf.tracking.client import end_run
from mlflow_perf.tracking.fleet_sums import USER_TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient

_log = logging.getLogger(__name__)
_AT_ONCE = 500
_THREADS = 8
_NAME_CHARS, _KEY_CHARS, _PARAM_CHARS, _TAG_CHARS = 250, 250, 500, 5000


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that has ended, to be written as a whole.

    Attributes:
        name: Its name.
        status: `FINISHED`, `FAILED` or `KILLED`.
        started: Unix time in seconds.
        ended: Unix time in seconds.
        metrics: Metric key → value, of node 0.
        params: Parameters.
        tags: Tags.
    """

    name: str
    status: str
    started: float
    ended: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


def write_runs(
    client: MlflowClient,
    experiment_id: str,
    runs: Sequence[FinishedRun],
    *,
    watch: Callable[[int], object] = lambda _done: None,
) -> None:
    """Write runs into an experiment. Each run is there as a whole or, after a failure, not at all.

    Args:
        client: A client of the store.
        experiment_id: The experiment.
        runs: The runs.
        watch: Called with the number of runs that are written.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer or refuses.
    """
    write = _find_tables(client, experiment_id)
    if write is None:
        with futures.ThreadPoolExecutor(_THREADS) as pool:
            each = pool.map(lambda run: _write_one(client, experiment_id, run), runs)
            for done, _ in enumerate(each, 1):
                watch(done)
        return
    for at in range(0, len(runs), _AT_ONCE):
        write(runs[at : at + _AT_ONCE])
        watch(min(at + _AT_ONCE, len(runs)))


def _write_one(client: MlflowClient, experiment_id: str, run: FinishedRun) -> None:
    """Write a run through MLflow's calls."""
    from mlflow.entities import Metric, Param

    tags = {key: clean_text(text, _TAG_CHARS) for key, text in run.tags.items()}
    started_ms, ended_ms = int(1000 * run.started), int(1000 * run.ended)
    name = clean_text(run.name, _NAME_CHARS)
    made = client.create_run(experiment_id, start_time=started_ms, tags=tags, run_name=name)
    run_id = made.info.run_id
    client.log_batch(
        run_id,
        metrics=[
            Metric(clean_metric_key(key), value, ended_ms, 0) for key, value in run.metrics.items()
        ],
        params=[Param(key, clean_text(v, _PARAM_CHARS)) for key, v in run.params.items()],
    )
    end_run(client, run_id, run.status, ended=run.ended)


def _find_tables(
    client: MlflowClient, experiment_id: str
) -> Callable[[Sequence[FinishedRun]], None] | None:
    """Return what writes runs into the store's own tables; None if it has none that we know."""
    try:
        from mlflow.store.tracking.dbmodels import models
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        store = client._tracking_client.store  # noqa: SLF001 - MLflow has no public way to it
        if not isinstance(store, SqlAlchemyStore):
            return None
        known = {"key", "value", "run_uuid"}
        tables = (models.SqlTag, models.SqlParam, models.SqlMetric, models.SqlLatestMetric)
        if any(not known <= set(table.__table__.columns.keys()) for table in tables):
            return None
        session_maker = store.ManagedSessionMaker
    except (ImportError, AttributeError):
        _log.info("This MLflow has other tables than expected; runs are written one by one.")
        return None
    location = str(client.get_experiment(experiment_id).artifact_location)

    def write(runs: Sequence[FinishedRun]) -> None:
        rows = _Rows(experiment_id, location)
        for run in runs:
            rows.add(run)
        with _begin_writing(session_maker) as session:
            session.bulk_insert_mappings(models.SqlRun, rows.runs)
            session.flush()
            for table, values in (
                (models.SqlTag, rows.tags),
                (models.SqlParam, rows.params),
                (models.SqlMetric, rows.metrics),
                (models.SqlLatestMetric, rows.metrics),
            ):
                session.bulk_insert_mappings(table, values)

    return write


def _begin_writing(session_maker: Any) -> Any:
    try:
        return session_maker(read_only=False)
    except TypeError:  # an older MLflow, which knows no replicas for reading
        return session_maker()


class _Rows:
    """Rows of MLflow's tables for some runs."""

    def __init__(self, experiment_id: str, location: str) -> None:
        self._experiment = int(experiment_id)
        self._location = location
        self._user = "unknown"
        with contextlib.suppress(OSError, KeyError):  # a container's user has no name
            self._user = getpass.getuser()
        self.runs: list[dict[str, Any]] = []
        self.tags: list[dict[str, Any]] = []
        self.params: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []

    def add(self, run: FinishedRun) -> None:
        run_id = uuid.uuid4().hex
        name = clean_text(run.name, _NAME_CHARS)
        ended_ms = int(1000 * run.ended)
        row = {
            "run_uuid": run_id,
            "name": name,
            "source_type": "LOCAL",
            "source_name": "",
            "entry_point_name": "",
            "user_id": run.tags.get(USER_TAG, self._user),
            "status": run.status,
            "start_time": int(1000 * run.started),
            "end_time": ended_ms,
            "source_version": "",
            "lifecycle_stage": "active",
            "artifact_uri": f"{self._location.rstrip('/')}/{run_id}/artifacts",
            "experiment_id": self._experiment,
        }
        self.runs.append(row)
        tags = {USER_TAG: self._user, **run.tags, "mlflow.runName": name}
        for key, text in tags.items():
            value = clean_text(text, _TAG_CHARS)
            self.tags.append({"key": key[:_KEY_CHARS], "value": value, "run_uuid": run_id})
        for key, text in run.params.items():
            value = clean_text(text, _PARAM_CHARS)
            self.params.append({"key": key[:_KEY_CHARS], "value": value, "run_uuid": run_id})
        for key, figure in run.metrics.items():
            at = {"key": clean_metric_key(key), "value": figure, "timestamp": ended_ms}
            self.metrics.append({**at, "step": 0, "is_nan": False, "run_uuid": run_id})
