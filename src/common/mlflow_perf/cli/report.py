"""`mlflow-perf report`: a run or a workflow as one HTML page."""

from __future__ import annotations

import click

from mlflow_perf.analysis.workflow import Workflow, workflow_of
from mlflow_perf.cli import _options, _tables
from mlflow_perf.document import PerfDocument
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.runs import PerfRun, documents_of, get_run

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
    found = get_run(run)
    workflow = workflow_of(found)
    if found.document is None and workflow is None:
        raise RunNotFoundError(f"The run {found.label} holds no performance documents.")
    page = _page(run, found, workflow)
    if log:
        _log(found, workflow, page)
        return
    _options.write(output, page)
    if output != "-":
        click.echo(f"Wrote {_tables.clean(output)}", err=True)


def _page(source: str, run: PerfRun, workflow: Workflow | None) -> str:
    """Return the page of a run and of its workflow, where it is the parent of one."""
    from mlflow_perf.sinks.html import render

    title = run.component or run.name
    flow = None if workflow is None else workflow.as_dict()
    if run.document is None:
        return render(PerfDocument(), title=title, workflow=flow)
    # Node by node: a thousand of them would not fit into memory well.
    nodes = (node for document in documents_of(source) for node in document.nodes.values())
    return render(nodes, title=title, workflow=flow)


def _log(run: PerfRun, workflow: Workflow | None, page: str) -> None:
    if run.run_id is None:
        raise RunNotFoundError("A file is no run to which a report could be logged.")
    from mlflow import MlflowClient

    client = MlflowClient()
    client.log_text(run.run_id, page, DEFAULT)
    if workflow is not None:
        client.log_dict(run.run_id, workflow.as_dict(), "perf/workflow.json")
    click.echo(f"Logged {DEFAULT} to the run {run.run_id}", err=True)
