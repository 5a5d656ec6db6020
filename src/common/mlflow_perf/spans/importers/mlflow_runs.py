"""MLflow's runs, metrics and traces: of one run by its id, or of a whole `mlflow.db`.

MLflow itself is imported only when a run is loaded by its id.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.uris import redact_password
from mlflow_perf.errors import MlflowPerfError, SpansError
from mlflow_perf.spans.database.schema import make_source_uri
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.base import SQLITE_MAGIC, list_tables
from mlflow_perf.spans.importers.nested import Nested, store_nested
from mlflow_perf.spans.importers.perf_document import read_document

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_PREFIX = "runs:/"
# A server refuses larger pages; a store without a server does not.
_TRACES_MAX = 500
_PARENT_TAG = "mlflow.parentRunId"
_RUNS = (
    "SELECT run_uuid AS run_id, name, status, start_time AS start_ms, end_time AS end_ms,"
    " (SELECT value FROM tags t WHERE t.run_uuid = r.run_uuid AND t.key = ?) AS parent FROM runs r"
    " WHERE lifecycle_stage = 'active' AND typeof(start_time) = 'integer'"
)
_METRICS = (
    "SELECT run_uuid, key, timestamp, value FROM metrics WHERE NOT is_nan"
    " AND typeof(timestamp) = 'integer'"
    " AND run_uuid IN (SELECT run_uuid FROM runs WHERE lifecycle_stage = 'active')"
)
_TRACES = (
    "SELECT i.request_id AS trace, timestamp_ms AS start_ms, execution_time_ms AS took_ms, status,"
    " (SELECT value FROM trace_request_metadata m WHERE m.request_id = i.request_id"
    "  AND m.key = 'mlflow.sourceRun') AS run_id FROM trace_info i"
    " WHERE typeof(timestamp_ms) = 'integer'"
)
_SPANS = (
    "SELECT trace_id AS trace, span_id AS span, parent_span_id AS parent, name,"
    " start_time_unix_nano AS start_ns, end_time_unix_nano AS end_ns, type, status"
    " FROM spans WHERE typeof(start_time_unix_nano) = 'integer'"
)


class MlflowStoreImporter:
    """Imports every active run of a store, with its metrics' history and its traces."""

    name = "mlflow-store"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Return whether it is an SQLite file with MLflow's tables."""
        needed = {"runs", "metrics", "experiments"}
        return head.startswith(SQLITE_MAGIC) and needed <= list_tables(source)

    def load(self, source: Path, store: Store) -> None:
        """Import runs, children as part of their parents, metrics, traces and their spans.

        Raises:
            sqlite3.Error: The file is locked, or its tables are not those of MLflow 3.
        """
        tables = list_tables(source)
        with closing(sqlite3.connect(make_source_uri(source), uri=True)) as db:
            metrics: dict[str, list[tuple[str, int, float]]] = defaultdict(list)
            for run, key, time_ms, value in db.execute(_METRICS):
                metrics[run].append((key, time_ms * 1000, value))
            db.row_factory = sqlite3.Row
            found = [_make_run(**row) for row in db.execute(_RUNS, (_PARENT_TAG,))]
            for nested in found:
                nested.metrics = metrics[str(nested.key)]
            if {"trace_info", "trace_request_metadata"} <= tables:
                found += [_make_trace(**row) for row in db.execute(_TRACES)]
            if "spans" in tables:
                found += [_make_trace_span(**row) for row in db.execute(_SPANS)]
        store_nested(store, found)


class MlflowRunImporter:
    """Imports a run, its children, their metrics' history, traces and performance documents."""

    name = "mlflow-run"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Return whether it is a run's URI."""
        return str(source).startswith(_PREFIX)

    def load(self, source: Path, store: Store) -> None:
        """Import the run and all runs below it.

        Raises:
            RunNotFoundError: There is no such run, or the tracking store does not answer.
            SpansError: A run below it cannot be read.
        """
        from mlflow.exceptions import MlflowException

        from mlflow_perf.tracking.load import fetch_run, load, make_client
        from mlflow_perf.tracking.paging import iterate_pages
        from mlflow_perf.tracking.perf_run import PerfRun

        run_id = str(source).removeprefix(_PREFIX).strip("/")
        client = make_client()
        found: list[Nested] = []
        # Stored after the runs: a component has the same scope and key as its run.
        components: list[Nested] = []
        waiting = [fetch_run(client, run_id)]
        # Parents are tags, which anybody may set: a cycle of runs must end.
        seen = {waiting[0].info.run_id}
        try:
            while waiting:
                run = waiting.pop()
                info = run.info
                nested = _make_run(
                    info.run_id,
                    name=info.run_name,
                    status=info.status,
                    start_ms=info.start_time,
                    end_ms=info.end_time or None,
                    parent=run.data.tags.get(_PARENT_TAG),
                )
                for key in run.data.metrics:
                    for metric in client.get_metric_history(info.run_id, key):
                        nested.metrics.append((metric.key, metric.timestamp * 1000, metric.value))
                found += [nested, *_read_traces(client, run)]
                with suppress(MlflowPerfError):  # most runs have no performance document
                    components += read_document(load(run.info.run_id).as_dict(), store)
                query = f"tags.`{_PARENT_TAG}` = '{run.info.run_id}'"
                homes = PerfRun.from_mlflow(run).step_experiments
                for child in iterate_pages(client.search_runs, homes, query):
                    if child.info.run_id not in seen:
                        seen.add(child.info.run_id)
                        waiting.append(child)
        except MlflowException as error:
            first = redact_password(error.message.splitlines()[0])
            raise SpansError(f"The run {run_id} cannot be read: {first}") from error
        store_nested(store, found)
        store_nested(store, components)


def _read_traces(client: MlflowClient, run: Run) -> Iterator[Nested]:
    from mlflow_perf.tracking.paging import iterate_pages

    known = signature(client.search_traces).parameters
    # The first versions of MLflow 3 have another name for the parameter.
    where = "locations" if "locations" in known else "experiment_ids"
    which = {where: [run.info.experiment_id], "run_id": run.info.run_id}
    for trace in iterate_pages(client.search_traces, max_results=_TRACES_MAX, **which):
        info: Any = trace.info
        yield _make_trace(
            info.trace_id,
            start_ms=info.request_time,
            took_ms=info.execution_duration,
            status=str(info.state),
            run_id=run.info.run_id,
        )
        for span in trace.data.spans:
            yield _make_trace_span(
                info.trace_id,
                span.span_id,
                name=span.name,
                parent=span.parent_id,
                start_ns=span.start_time_ns,
                end_ns=span.end_time_ns,
            )


def _make_run(
    run_id: str, *, name: str, status: str, start_ms: int, end_ms: int | None, parent: str | None
) -> Nested:
    """Return a run as a span, part of its parent run if it has one."""
    return Nested(
        type="mlflow.run",
        scope=f"mlflow:{run_id}",
        key=run_id,
        start_us=start_ms * 1000,
        end_us=None if end_ms is None else end_ms * 1000,
        parent=(f"mlflow:{parent}", parent) if parent else None,
        about={"name": name, "status": status},
    )


def _make_trace(
    trace: str, *, start_ms: int, took_ms: int | None, status: str, run_id: str | None
) -> Nested:
    """Return a trace as a span, part of its run if it has one."""
    return Nested(
        type="mlflow.trace",
        scope=f"mlflow-trace:{trace}",
        key=trace,
        start_us=start_ms * 1000,
        end_us=None if took_ms is None else (start_ms + took_ms) * 1000,
        parent=(f"mlflow:{run_id}", run_id) if run_id else None,
        about={"status": status},
    )


def _make_trace_span(
    trace: str,
    span: str,
    *,
    name: str,
    parent: str | None,
    start_ns: int,
    end_ns: int | None,
    type: str | None = None,  # noqa: A002 - the name of MLflow's column
    status: str | None = None,
) -> Nested:
    """Return a span of a trace: its type is `mlflow.span.` and its name."""
    scope = f"mlflow-trace:{trace}"
    return Nested(
        type=f"mlflow.span.{name}",
        scope=scope,
        key=span,
        start_us=start_ns // 1000,
        end_us=None if end_ns is None else end_ns // 1000,
        parent=(scope, parent or trace),
        about={"kind": type, "status": status},
    )
