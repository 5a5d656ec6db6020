"""The page's views: what a request asks for → HTML. Imports access, listing and the sinks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from flask import Response, request

from mlflow_perf._version import __version__
from mlflow_perf.analysis.compare import compare as compare_runs
from mlflow_perf.analysis.workflow import build_workflow
from mlflow_perf.core.format import clock_time
from mlflow_perf.errors import MlflowPerfError, SettingError
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.reports import html
from mlflow_perf.reports.comparison_page import build_comparison_page
from mlflow_perf.reports.run_page import RunPage
from mlflow_perf.tracking.page_probe import PAGE_HEADER, PAGE_PATH
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.web.access import Access, NotAllowedError
from mlflow_perf.web.listing import Choice, build_listing
from mlflow_perf.web.static_prefix import static_prefix

if TYPE_CHECKING:
    import jinja2

__all__ = ["ROUTES"]

_log = logging.getLogger(__name__)

_RUN, _COMPARE = f"{PAGE_PATH}/run", f"{PAGE_PATH}/compare"
_MOST_COMPARED = 50
_MOST_UNREAD = 5
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    PAGE_HEADER: __version__,
}


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    """Return the report's templates with those of this package before them."""
    import jinja2

    ours = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    below = html.load_templates()
    assert below.loader is not None
    return below.overlay(loader=jinja2.ChoiceLoader([ours, below.loader]))


def _address_of_run(run_id: str) -> str:
    return f"{static_prefix()}{_RUN}?{urlencode({'id': run_id})}"


def _address_in_mlflow(experiment_id: Any, run_id: Any) -> str:
    # MLflow 3.18 opens on a view that hides ordinary runs.
    path = f"#/experiments/{quote(str(experiment_id), safe='')}/runs/{quote(str(run_id), safe='')}"
    return f"{static_prefix()}/{path}?workflowType=machine_learning"


def _page(template: str, status: int = 200, **values: Any) -> Response:
    text = (
        _environment()
        .get_template(template)
        .render(
            prefix=static_prefix(),
            run_address=_address_of_run,
            mlflow_address=_address_in_mlflow,
            **values,
        )
    )
    return Response(text, status, _HEADERS, mimetype="text/html")


def _answered(view: Callable[[Access], Response]) -> Callable[[], Response]:
    """Turn what a view raises into a page with one sentence and the right status."""

    @wraps(view)
    def answer() -> Response:
        from mlflow.exceptions import MlflowException

        if request.method == "HEAD":  # a job asks whether this page is here: it need not be drawn
            return Response(status=200, headers=_HEADERS, mimetype="text/html")
        try:
            return view(Access(static_prefix()))
        except NotAllowedError as error:
            return _page("perf_error.html", error.status, message=str(error))
        except MlflowPerfError as error:
            return _page("perf_error.html", 400, message=str(error))
        except MlflowException as error:
            status = int(error.get_http_status_code())  # type: ignore[no-untyped-call]  # MLflow's
            return _page("perf_error.html", status, message=error.message)

    return answer


@_answered
def runs(access: Access) -> Response:
    """List the runs that hold performance data."""
    choice = Choice.from_query({k: request.args.getlist(k) for k in request.args})
    experiments = access.experiments()
    searched = [e for e in choice.experiments or experiments if e in experiments]
    found = access.runs(searched, choice)
    listing = build_listing(found, choice, experiments)
    return _page("perf_list.html", listing=listing, choice=choice, experiments=experiments)


@_answered
def run(access: Access) -> Response:
    """Show one run: its report, or the workflow that it is."""
    one = access.run(_wanted("id"))
    workflow = _workflow(access, one)
    context = html.build_context(
        _nodes(access, one),
        title=one.name or one.component,
        workflow=workflow,
        link=_address_of_run,
    )
    _fill_up(context["report"], one, access.unread, is_workflow=bool(workflow))
    return _page("perf_run.html", run=one, **context)


def _fill_up(report: RunPage, one: PerfRun, unread: Sequence[str], *, is_workflow: bool) -> None:
    """Add what MLflow knows where the documents do not say it, and which of them are left out."""
    report.run_id = report.run_id or one.run_id or ""
    report.started = report.started or ("" if is_workflow else clock_time(one.started, missing=""))
    report.status = report.status or ("" if is_workflow else one.status or "")
    report.notes += unread[:_MOST_UNREAD]
    if len(unread) > _MOST_UNREAD:
        report.notes.append(f"{len(unread) - _MOST_UNREAD} more documents are left out.")


def _nodes(access: Access, one: PerfRun) -> Iterator[NodeDocument]:
    """Return the documents of a run's nodes; without any, the figures in the run's metrics."""
    documents = access.nodes(one)
    first = next(documents, None)
    if first is not None:
        yield first
        yield from documents
        return
    for index, summary in one.nodes.items():
        yield NodeDocument(
            {"index": index},
            one.component,
            status=one.status,
            started=one.started,
            summary=dict(summary),
        )


def _workflow(access: Access, one: PerfRun) -> dict[str, Any] | None:
    # Steps without figures too: one that failed at its start is what a workflow is opened for.
    children = access.children(one)
    if not any(child.has_figures for child in children):
        return access.workflow(one)
    # A document of each step's nodes, where it has several: of one node the metrics say it all.
    steps = [access.with_document(c) if c.node_count > 1 else c for c in children]
    flow = build_workflow(one, steps)
    return None if flow is None else flow.as_dict()


@_answered
def compare(access: Access) -> Response:
    """Show any runs side by side."""
    ids = list(dict.fromkeys(request.args.getlist("run")))
    if not 2 <= len(ids) <= _MOST_COMPARED:
        raise SettingError(f"Choose from 2 to {_MOST_COMPARED} runs to compare.")
    chosen = [access.run(run_id) for run_id in ids]
    compared = compare_runs([access.with_document(one) for one in chosen], documents=False)
    page = build_comparison_page(compared.as_dict())
    return _page("perf_compare.html", page=page, chosen=chosen, title=f"{len(ids)} runs compared")


def _wanted(name: str) -> str:
    value = request.args.get(name, "").strip()
    if not value:
        raise SettingError(f"The address names no run: add ?{name}=… to it.")
    return value


ROUTES: dict[str, Callable[[], Response]] = {PAGE_PATH: runs, _RUN: run, _COMPARE: compare}
"""Path below the static prefix → view. Each path is fixed: MLflow's basic-auth knows no others."""
