"""A run of MLflow by its id (`runs:/<id>`), from the configured tracking store.

MLflow is imported only when a run is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.uris import redact_password
from mlflow_perf.errors import MlflowPerfError, SpansError
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.mlflow_store import PARENT_TAG, RUN, TRACE, trace_span
from mlflow_perf.spans.importers.nested import Nested, store_nested
from mlflow_perf.spans.importers.perf_document import read_document

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = ["MlflowRunImporter"]

_PREFIX = "runs:/"
# A server refuses larger pages; a store without a server does not.
_TRACES_MAX = 500


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

        from mlflow_perf.tracking.load import fetch_run, load, new_client
        from mlflow_perf.tracking.paging import iterate_pages

        run_id = str(source).removeprefix(_PREFIX).strip("/")
        client = new_client()
        found: list[Nested] = []
        # Stored after the runs: a component has the same scope and key as its run.
        components: list[Nested] = []
        waiting = [fetch_run(client, run_id)]
        # Parents are tags, which anybody may set: a cycle of runs must end.
        seen = {waiting[0].info.run_id}
        try:
            while waiting:
                run = waiting.pop()
                found += [_read_run(client, run), *_read_traces(client, run)]
                with suppress(MlflowPerfError):  # most runs have no performance document
                    components += read_document(load(run.info.run_id).as_dict(), store)
                query = f"tags.`{PARENT_TAG}` = '{run.info.run_id}'"
                for child in iterate_pages(client.search_runs, [run.info.experiment_id], query):
                    if child.info.run_id not in seen:
                        seen.add(child.info.run_id)
                        waiting.append(child)
        except MlflowException as error:
            first = redact_password(error.message.splitlines()[0])
            raise SpansError(f"The run {run_id} cannot be read: {first}") from error
        store_nested(store, found)
        store_nested(store, components)


def _read_run(client: MlflowClient, run: Run) -> Nested:
    run_id, parent = run.info.run_id, run.data.tags.get(PARENT_TAG)
    metrics = [
        (metric.key, metric.timestamp * 1000, metric.value)
        for key in run.data.metrics
        for metric in client.get_metric_history(run_id, key)
    ]
    return Nested(
        type=RUN,
        scope=f"mlflow:{run_id}",
        key=run_id,
        start_us=run.info.start_time * 1000,
        end_us=run.info.end_time * 1000 if run.info.end_time else None,
        parent=(f"mlflow:{parent}", parent) if parent else None,
        about={"name": run.info.run_name, "status": run.info.status},
        metrics=metrics,
    )


def _read_traces(client: MlflowClient, run: Run) -> Iterator[Nested]:
    from mlflow_perf.tracking.paging import iterate_pages

    known = signature(client.search_traces).parameters
    # The first versions of MLflow 3 have another name for the parameter.
    where = "locations" if "locations" in known else "experiment_ids"
    which = {where: [run.info.experiment_id], "run_id": run.info.run_id}
    for trace in iterate_pages(client.search_traces, max_results=_TRACES_MAX, **which):
        info: Any = trace.info
        scope = f"mlflow-trace:{info.trace_id}"
        took = info.execution_duration
        yield Nested(
            type=TRACE,
            scope=scope,
            key=info.trace_id,
            start_us=info.request_time * 1000,
            end_us=None if took is None else (info.request_time + took) * 1000,
            parent=(f"mlflow:{run.info.run_id}", run.info.run_id),
            about={"status": str(info.state)},
        )
        for span in trace.data.spans:
            yield trace_span(
                info.trace_id,
                span.span_id,
                span.parent_id,
                name=span.name,
                start_ns=span.start_time_ns,
                end_ns=span.end_time_ns,
            )
