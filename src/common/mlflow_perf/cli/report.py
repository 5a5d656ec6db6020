"""`mlflow-perf report`: a run or a workflow as one HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import click

from mlflow_perf.analysis.workflow import Workflow, workflow_of
from mlflow_perf.cli import _options, _tables
from mlflow_perf.document import NodeDocument
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.runs import PerfRun, documents_of, get_runs, is_run_id
from mlflow_perf.runs.many import default_processes

DEFAULT = "perf_report.html"


@click.command()
@click.argument("run")
@click.option(
    "--output",
    "-o",
    default=DEFAULT,
    show_default=True,
    metavar="FILE",
    help="Where to; - is standard output.",
)
@click.option("--log", "log", is_flag=True, help="Log the report to RUN instead.")
def command(run: str, *, output: str, log: bool) -> None:  # fmt: skip
    """Write RUN and its children as one HTML page that needs no network.

    RUN is a run id, a path to a document, or a folder of node-*.json.
    """
    _options.prepare()
    # Its documents are read below, node by node: those of a thousand would fill the memory.
    found = get_runs([run], documents=False)[0] if is_run_id(run) else None
    workflow = None if found is None else workflow_of(found)
    page = _page(found, workflow, _nodes(run, needed=workflow is None))
    if log:
        _log(found, workflow, page)
        return
    _options.write(output, page)
    if output != "-":
        click.echo(f"Wrote {_tables.clean(output)}", err=True)


def _nodes(source: str, *, needed: bool) -> Iterator[NodeDocument]:
    """Yield the nodes of a source; none where a workflow's parent has no documents of its own."""
    documents = documents_of(source, processes=default_processes())
    try:
        first = next(documents)
    except RunNotFoundError:
        if needed:
            raise
        return
    for document in chain([first], documents):
        yield from document.nodes.values()


def _page(run: PerfRun | None, workflow: Workflow | None, nodes: Iterator[NodeDocument]) -> str:
    """Return the page of a run's nodes and of its workflow, where it is the parent of one."""
    from mlflow_perf.sinks.html import render

    title = None if run is None else run.component or run.name
    return render(nodes, title=title, workflow=None if workflow is None else workflow.as_dict())


def _log(run: PerfRun | None, workflow: Workflow | None, page: str) -> None:
    if run is None or run.run_id is None:
        raise RunNotFoundError("A file is no run to which a report could be logged.")
    from mlflow import MlflowClient

    client = MlflowClient()
    client.log_text(run.run_id, page, DEFAULT)
    if workflow is not None:
        client.log_dict(run.run_id, workflow.as_dict(), "perf/workflow.json")
    click.echo(f"Logged {DEFAULT} to the run {run.run_id}", err=True)
