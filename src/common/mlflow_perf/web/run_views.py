"""The pages of one run and of several runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flask import Response, request

from mlflow_perf.analysis.compare import compare as compare_runs
from mlflow_perf.analysis.step_runs import StepRuns, collect_steps
from mlflow_perf.analysis.workflow import build_workflow
from mlflow_perf.core.format import clock_time, format_count
from mlflow_perf.errors import SettingError
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.reports import html
from mlflow_perf.reports.run_page import RunPage
from mlflow_perf.tracking.notices import explain_deleted
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.web.access import Access
from mlflow_perf.web.answers import handle_errors, link_run, render
from mlflow_perf.web.fields import is_users_metric

_MOST_COMPARED = 50
_MOST_DRAWN = 20
_MOST_NODES = 64
_MOST_UNREAD = 5
_MOST_READ_STEPS = 100
_MOST_OWN_METRICS = 50
_FIRST_REFRESH_SEC, _REFRESH_SEC = 5, 30
_NO_FIGURES_YET = (
    "No figures have come yet. With live=True, or MLFLOW_PERF_LIVE=true, they come every 5 s; "
    "without, the report comes when the job ends."
)


@handle_errors
def run(access: Access) -> Response:
    """Show one run: its report, and its steps if it is a workflow."""
    run_id = request.args.get("id", "").strip()
    if not run_id:
        raise SettingError("The address names no run: add ?id=… to it.")
    one = access.run(run_id)
    workflow = _read_workflow(access, one)
    title = one.name or one.component
    nodes, is_live, is_silent = _read_nodes(access, one), False, False
    if one.status == "RUNNING" and workflow is None:
        read = list(nodes)
        live = access.live_nodes(one) if not any(node.reports for node in read) else []
        nodes, is_live, is_silent = iter(live or read), bool(live), not (live or read)
    context = html.build_context(nodes, title=title, workflow=workflow, link=link_run, run=one)
    # MLflow's facts replace those that the documents lack.
    report: RunPage = context["report"]
    report.run_id = report.run_id or one.run_id or ""
    if not workflow:
        report.started = report.started or clock_time(one.started, missing="")
        report.status = report.status or one.status or ""
    if one.is_deleted:
        report.notes.insert(0, explain_deleted(run_id))
    report.notes += access.unread[:_MOST_UNREAD]
    if len(access.unread) > _MOST_UNREAD:
        more = format_count(len(access.unread) - _MOST_UNREAD, "more document")
        report.notes.append(f"{more} left out.")
    if is_silent:
        report.notes.append(_NO_FIGURES_YET)
    if is_live:
        # What a part of the job looks like is no verdict on the whole.
        report.verdict, report.findings, report.asked = {}, [], None
        report.notes.append("These are the job's metrics in MLflow so far.")
        further = [*one.components]
        users = (k for k in sorted(one.metrics) if is_users_metric(k, further))
        own = [(key, f"{one.metrics[key]:,.6g}") for key in users]
        if own:
            report.facts.append(("The job's own metrics so far", own[:_MOST_OWN_METRICS]))
    answer = render("perf_run.html", run=one, is_running=one.status == "RUNNING", **context)
    if one.status == "RUNNING" and request.args.get("refresh"):
        answer.headers["Refresh"] = str(_FIRST_REFRESH_SEC if is_silent else _REFRESH_SEC)
    return answer


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
    flow = build_workflow(one if one.is_group else access.with_document(one), steps)
    return None if flow is None else flow.as_dict()


@handle_errors
def compare(access: Access) -> Response:
    """Show any runs side by side."""
    ids = list(dict.fromkeys(request.args.getlist("run")))
    if not 2 <= len(ids) <= _MOST_COMPARED:
        raise SettingError(f"Choose from 2 to {_MOST_COMPARED} runs to compare.")
    chosen = [access.run(run_id) for run_id in ids]
    base = request.args.get("baseline", "").strip()
    if base and base not in ids:
        raise SettingError(f"The baseline {base!r} is none of the runs that are compared.")
    sides = _read_sides(access, chosen)
    compared = compare_runs(sides, baseline=ids.index(base) if base else 0)
    names = dict.fromkeys(name for steps in compared.steps for name in steps)
    curves = {name: [_read_curves(access, steps.get(name)) for steps in compared.steps]
              for name in names}  # fmt: skip
    page = html.build_comparison(
        compared.as_dict(), nodes=curves if len(ids) <= _MOST_DRAWN else {}
    )
    page.notes.extend(access.unread[:_MOST_UNREAD])
    return render(
        "perf_compare.html",
        page=page,
        chosen=chosen,
        title=f"{len(ids)} runs compared",
        address=lambda index: link_run(str(chosen[index].run_id)),
    )


def _read_sides(access: Access, chosen: Sequence[PerfRun]) -> list[StepRuns]:
    """Return the runs with their steps; with the documents of all steps, unless they are many."""
    children = access.children_of_each(chosen)
    few = sum(map(len, children)) <= _MOST_READ_STEPS
    return [
        collect_steps(
            access.with_document(one),
            [access.with_document(step) if few else step for step in steps],
        )
        for one, steps in zip(chosen, children, strict=True)
    ]


def _read_curves(access: Access, run: PerfRun | None) -> Iterator[NodeDocument]:
    """Yield the nodes of a step with their curves; none of a run on very many."""
    for node in access.nodes(run) if run is not None and run.node_count <= _MOST_NODES else ():
        if run is not None and node.component in (None, run.component):
            yield node
