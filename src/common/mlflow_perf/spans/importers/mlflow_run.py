"""A run of MLflow by its id (`runs:/<id>`), from whatever tracking store MLflow is set to.

May import addresses, errors, runs, spans.store, spans.importers; MLflow and runs only when a run is
asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.uris import redact_password
from mlflow_perf.errors import MlflowPerfError, SpansError
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.mlflow_store import PARENT_TAG, RUN, TRACE, trace_span
from mlflow_perf.spans.importers.nested import Nested, store_nested
from mlflow_perf.spans.importers.perf_document import spans_of_document

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = ["MlflowRunImporter"]

_PREFIX = "runs:/"
# A server refuses to give more at a time; a store without one does not.
_TRACES_MAX = 500


class MlflowRunImporter:
    """Imports a run, its children, their metrics' history, traces and performance documents."""

    name = "mlflow-run"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Say whether it is a run's URI."""
        return str(source).startswith(_PREFIX)

    def load(self, source: Path, store: Store) -> None:
        """Import the run and what is below it.

        Raises:
            RunNotFoundError: There is no such run, or the tracking store does not answer.
            SpansError: What is below it cannot be read.
        """
        from mlflow.exceptions import MlflowException

        from mlflow_perf.tracking.load import fetch_run, new_client

        run_id = str(source).removeprefix(_PREFIX).strip("/")
        client = new_client()
        named = fetch_run(client, run_id)
        found: list[Nested] = []
        # Apart from the runs: a component has its run's key, which the facet between them needs.
        documents: list[Nested] = []
        try:
            for run in _family(client, named):
                found += [_run(client, run), *_traces(client, run)]
                documents += _document(run, store)
        except MlflowException as error:
            first = redact_password(error.message.splitlines()[0])
            raise SpansError(f"The run {run_id} cannot be read: {first}") from error
        store_nested(store, found)
        store_nested(store, documents)


def _family(client: MlflowClient, run: Run) -> Iterator[Run]:
    """Yield a run and all below it, each once: parents are tags, which anybody may set."""
    from mlflow_perf.tracking.paging import iterate_pages

    waiting, seen = [run], {run.info.run_id}
    while waiting:
        run = waiting.pop()
        yield run
        query = f"tags.`{PARENT_TAG}` = '{run.info.run_id}'"
        for child in iterate_pages(client.search_runs, [run.info.experiment_id], query):
            if child.info.run_id not in seen:
                seen.add(child.info.run_id)
                waiting.append(child)


def _run(client: MlflowClient, run: Run) -> Nested:
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


def _traces(client: MlflowClient, run: Run) -> Iterator[Nested]:
    from mlflow_perf.tracking.paging import iterate_pages

    known = signature(client.search_traces).parameters
    # The first versions of MLflow 3 do not know the name that later ones want.
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


def _document(run: Run, store: Store) -> list[Nested]:
    """Return the spans of the run's performance document, where it has one."""
    from mlflow_perf.tracking.load import load

    try:
        document = load(run.info.run_id)
    except MlflowPerfError:
        return []
    return spans_of_document(document.as_dict(), store)
