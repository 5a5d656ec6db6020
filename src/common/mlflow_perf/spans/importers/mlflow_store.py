"""MLflow's own SQLite store (`mlflow.db`): runs, metrics and traces, read without MLflow."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.schema import source_uri
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.base import SQLITE_MAGIC, list_tables
from mlflow_perf.spans.importers.nested import Nested, store_nested

__all__ = ["PARENT_TAG", "RUN", "TRACE", "MlflowStoreImporter", "trace_span"]

RUN, TRACE = "mlflow.run", "mlflow.trace"
PARENT_TAG = "mlflow.parentRunId"
_RUNS = (
    "SELECT run_uuid, name, status, start_time, end_time,"
    " (SELECT value FROM tags t WHERE t.run_uuid = r.run_uuid AND t.key = ?) FROM runs r"
    " WHERE lifecycle_stage = 'active' AND typeof(start_time) = 'integer'"
)
_METRICS = (
    "SELECT run_uuid, key, timestamp, value FROM metrics WHERE NOT is_nan"
    " AND typeof(timestamp) = 'integer'"
    " AND run_uuid IN (SELECT run_uuid FROM runs WHERE lifecycle_stage = 'active')"
)
_TRACES = (
    "SELECT i.request_id, i.timestamp_ms, i.execution_time_ms, i.status,"
    " (SELECT value FROM trace_request_metadata m WHERE m.request_id = i.request_id"
    "  AND m.key = 'mlflow.sourceRun') FROM trace_info i"
    " WHERE typeof(timestamp_ms) = 'integer'"
)
_SPANS = (
    "SELECT trace_id, span_id, parent_span_id, name, type, start_time_unix_nano,"
    " end_time_unix_nano, status FROM spans WHERE typeof(start_time_unix_nano) = 'integer'"
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
            SpansError: The file is locked, or its tables are not those of MLflow 3.
        """
        tables = list_tables(source)
        try:
            with closing(sqlite3.connect(source_uri(source), uri=True)) as db:
                found = _read_runs(db)
                if {"trace_info", "trace_request_metadata"} <= tables:
                    found += _read_traces(db)
                for row in db.execute(_SPANS) if "spans" in tables else ():
                    trace, span, parent, name, kind, start, end, status = row
                    nested = trace_span(trace, span, parent, name=name, start_ns=start, end_ns=end)
                    nested.about = {"kind": kind, "status": status}
                    found.append(nested)
        except sqlite3.Error as error:
            raise SpansError(f"{source} cannot be read as MLflow's store: {error}.") from error
        store_nested(store, found)


def trace_span(
    trace: str, span: str, parent: str | None, *, name: str, start_ns: int, end_ns: int | None
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
    )


def _read_runs(db: sqlite3.Connection) -> list[Nested]:
    metrics: dict[str, list[tuple[str, int, float]]] = defaultdict(list)
    for run, key, time_ms, value in db.execute(_METRICS):
        metrics[run].append((key, time_ms * 1000, value))
    return [
        Nested(
            type=RUN,
            scope=f"mlflow:{run}",
            key=run,
            start_us=start * 1000,
            end_us=None if end is None else end * 1000,
            parent=(f"mlflow:{parent}", parent) if parent else None,
            about={"name": name, "status": status},
            metrics=metrics[run],
        )
        for run, name, status, start, end, parent in db.execute(_RUNS, (PARENT_TAG,))
    ]


def _read_traces(db: sqlite3.Connection) -> list[Nested]:
    return [
        Nested(
            type=TRACE,
            scope=f"mlflow-trace:{trace}",
            key=trace,
            start_us=start * 1000,
            end_us=None if took is None else (start + took) * 1000,
            parent=(f"mlflow:{run}", run) if run else None,
            about={"status": status},
        )
        for trace, start, took, status, run in db.execute(_TRACES)
    ]
