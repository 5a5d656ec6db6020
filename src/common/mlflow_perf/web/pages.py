"""The page's views: each turns a request into HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from flask import Response, request

from mlflow_perf._version import __version__
from mlflow_perf.analysis.compare import compare as compare_runs
from mlflow_perf.analysis.workflow import build_workflow
from mlflow_perf.core.format import clock_time
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.errors import MlflowPerfError, SettingError
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.reports import html
from mlflow_perf.reports.run_page import RunPage
from mlflow_perf.tracking.page_probe import PAGE_HEADER, PAGE_PATH
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.web.access import Access, NotAllowedError, bind_workspace
from mlflow_perf.web.listing import Choice, build_listing
from mlflow_perf.web.static_prefix import read_static_prefix

if TYPE_CHECKING:
    import jinja2

_log = get_logger(__name__)

_RUN, _COMPARE = f"{PAGE_PATH}/run", f"{PAGE_PATH}/compare"
_MOST_COMPARED = 50
_MOST_DRAWN = 20
_MOST_NODES = 64
_MOST_UNREAD = 5
_MOST_READ_STEPS = 100
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    PAGE_HEADER: __version__,
}


@lru_cache(maxsize=1)
def _load_templates() -> jinja2.Environment:
    """Return the templates of this folder before those of the report."""
    import jinja2

    ours = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    below = html.load_templates()
    assert below.loader is not None
    return below.overlay(loader=jinja2.ChoiceLoader([ours, below.loader]))


def _read_workspace() -> str:
    """Return the workspace that the address names; empty for the server's default."""
    return request.args.get("workspace", "").strip()


def _link_page(path: str = PAGE_PATH, **query: str) -> str:
    """Return the address of a page of ours in the same workspace."""
    kept = {**query, "workspace": _read_workspace()}
    text = urlencode({name: value for name, value in kept.items() if value})
    return f"{read_static_prefix()}{path}{'?' if text else ''}{text}"


def _link_run(run_id: str) -> str:
    return _link_page(_RUN, id=run_id)


def _link_mlflow(experiment_id: Any, run_id: Any) -> str:
    # MLflow 3.18 opens on a view that hides ordinary runs.
    path = f"#/experiments/{quote(str(experiment_id), safe='')}/runs/{quote(str(run_id), safe='')}"
    query = {"workflowType": "machine_learning", "workspace": _read_workspace()}
    shown = urlencode({name: value for name, value in query.items() if value})
    return f"{read_static_prefix()}/{path}?{shown}"


def _render(template: str, status: int = 200, **values: Any) -> Response:
    links = {"run_address": _link_run, "mlflow_address": _link_mlflow, "page_address": _link_page}
    page = _load_templates().get_template(template)
    text = page.render(prefix=read_static_prefix(), workspace=_read_workspace(), **links, **values)
    return Response(text, status, _HEADERS, mimetype="text/html")


def _handle_errors(view: Callable[[Access], Response]) -> Callable[[], Response]:
    """Turn an exception of a view into a page with one sentence and the right status."""

    @wraps(view)
    def answer() -> Response:
        from mlflow.exceptions import MlflowException

        if request.method == "HEAD":  # a job only checks whether this page exists
            return Response(status=200, headers=_HEADERS, mimetype="text/html")
        try:
            workspace = _read_workspace()
            with bind_workspace(workspace):
                return view(Access(read_static_prefix(), workspace))
        except NotAllowedError as error:
            return _render("perf_error.html", error.status, message=str(error))
        except MlflowPerfError as error:
            return _render("perf_error.html", 400, message=str(error))
        except MlflowException as error:
            status = int(error.get_http_status_code())  # type: ignore[no-untyped-call]  # MLflow's
            return _render("perf_error.html", status, message=error.message)

    return answer


@_handle_errors
def runs(access: Access) -> Response:
    """List the runs that hold performance data."""
    choice = Choice.from_query({k: request.args.getlist(k) for k in request.args})
    experiments = access.experiments()
    searched = [e for e in choice.experiments or experiments if e in experiments]
    found = access.runs(searched, choice)
    listing = build_listing(found, choice, experiments)
    return _render(
        "perf_list.html",
        listing=listing,
        choice=choice,
        experiments=experiments,
        workspaces=access.workspaces(),
    )


@_handle_errors
def run(access: Access) -> Response:
    """Show one run: its report, and its steps if it is a workflow."""
    run_id = request.args.get("id", "").strip()
    if not run_id:
        raise SettingError("The address names no run: add ?id=… to it.")
    one = access.run(run_id)
    workflow = _read_workflow(access, one)
    title = one.name or one.component
    nodes = _read_nodes(access, one)
    context = html.build_context(nodes, title=title, workflow=workflow, link=_link_run, run=one)
    # MLflow's facts replace those that the documents lack.
    report: RunPage = context["report"]
    report.run_id = report.run_id or one.run_id or ""
    if not workflow:
        report.started = report.started or clock_time(one.started, missing="")
        report.status = report.status or one.status or ""
    report.notes += access.unread[:_MOST_UNREAD]
    if len(access.unread) > _MOST_UNREAD:
        report.notes.append(f"{len(access.unread) - _MOST_UNREAD} more documents are left out.")
    return _render("perf_run.html", run=one, **context)


def _read_nodes(access: Access, one: PerfRun) -> Iterator[NodeDocument]:
    """Yield the documents of a run's nodes; without any, the figures in the run's metrics."""
    documents = access.nodes(one)
    first = next(documents, None)
    if first is not None:
        yield first
        yield from documents
        return
    for run in (one, *one.components.values()):
        for index, summary in run.nodes.items():
            yield NodeDocument(
                {"index": index},
                run.component,
                status=run.status,
                started=run.started,
                summary=dict(summary),
            )


def _read_workflow(access: Access, one: PerfRun) -> dict[str, Any] | None:
    # Steps without figures are included: people open a workflow to find a step that failed early.
    children = access.children(one)
    if not any(child.has_figures for child in children):
        return access.workflow(one)
    # The metrics hold all figures of a step on one node, but not when its block began.
    few = len(children) <= _MOST_READ_STEPS
    steps = [access.with_document(c) if few or c.node_count > 1 else c for c in children]
    flow = build_workflow(one, steps)
    return None if flow is None else flow.as_dict()


@_handle_errors
def compare(access: Access) -> Response:
    """Show any runs side by side."""
    ids = list(dict.fromkeys(request.args.getlist("run")))
    if not 2 <= len(ids) <= _MOST_COMPARED:
        raise SettingError(f"Choose from 2 to {_MOST_COMPARED} runs to compare.")
    chosen = [access.run(run_id) for run_id in ids]
    base = request.args.get("baseline", "").strip()
    if base and base not in ids:
        raise SettingError(f"The baseline {base!r} is none of the runs that are compared.")
    compared = compare_runs(
        [access.with_document(one) for one in chosen],
        baseline=ids.index(base) if base else 0,
        documents=False,
    )
    names = dict.fromkeys(name for steps in compared.steps for name in steps)
    curves = {name: [_read_curves(access, steps.get(name)) for steps in compared.steps]
              for name in names}  # fmt: skip
    page = html.build_comparison(
        compared.as_dict(), nodes=curves if len(ids) <= _MOST_DRAWN else {}
    )
    page.notes.extend(access.unread[:_MOST_UNREAD])
    return _render(
        "perf_compare.html",
        page=page,
        chosen=chosen,
        title=f"{len(ids)} runs compared",
        address=lambda index: _link_run(str(chosen[index].run_id)),
    )


def _read_curves(access: Access, run: PerfRun | None) -> Iterator[NodeDocument]:
    """Yield the nodes of a step with their curves; none of a run on very many."""
    for node in access.nodes(run) if run is not None and run.node_count <= _MOST_NODES else ():
        if run is not None and node.component in (None, run.component):
            yield node


ROUTES: dict[str, Callable[[], Response]] = {PAGE_PATH: runs, _RUN: run, _COMPARE: compare}
"""Path below the static prefix → view. MLflow's basic-auth needs fixed paths."""
