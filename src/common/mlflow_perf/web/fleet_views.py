"""The overview of the fleet, and the trends of its components."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache

from flask import Response, request

from mlflow_perf.analysis.component_history import DEFAULT_METRIC
from mlflow_perf.analysis.fleet import RUNS_OF_EACH, FleetRow, advise_component, build_rows
from mlflow_perf.core.format import parse_age
from mlflow_perf.errors import MlflowPerfError
from mlflow_perf.model.metrics import METRICS, RUN_METRICS
from mlflow_perf.tracking.fleet_sums import GROUPS, Sums, add_up, choose_parts
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.web.access import Access
from mlflow_perf.web.answers import handle_errors
from mlflow_perf.web.choice import Choice
from mlflow_perf.web.fields import Field, is_users_metric, read_field
from mlflow_perf.web.list_views import find_runs, read_choice, render_form
from mlflow_perf.web.overview import WEEK_SEC, SumRuns, build_overview, list_edges
from mlflow_perf.web.table import Found
from mlflow_perf.web.trends import HISTORY_KEYS, Trend, build_trend

_SPAN = "30d"
_SHOWN_TRENDS, _MOST_TRENDS = 6, 24
_TREND_SEC = 5 * WEEK_SEC
_RUNS_OF_TREND, _RUNS_OF_GALLERY = 500, 100
_ADVISED = 3
_READ_SEC = 0.7  # 30 documents take 0.4 s from a local disk, and the page shall take 2 s at most
_MOST_NODES = 16
_ALL_KEYS = [*(m.key for m in METRICS), *(m.key for m in RUN_METRICS)]


@handle_errors
def fleet(access: Access) -> Response:
    """Sum up the resources held and left unused by the runs that the user may read."""
    choice, problem = read_choice()
    by = request.args.get("by") or "component"
    if by not in GROUPS and not problem:
        problem = f"Runs are summed up by {', '.join(GROUPS)}, not by {by[:60]!r}."
    experiments = access.experiments()
    names = _narrow(experiments, choice)
    now, since = time.time(), choice.since or _SPAN
    span_sec = parse_age(since)
    sum_runs = _make_sum_runs(access, names, list_edges(span_sec, now))
    view, worse = None, []
    if not problem:
        view = build_overview(sum_runs, names, by=by, span_sec=span_sec, now=now)
    if view is not None:
        plain = replace(choice, since="", equal={}, query="", text="", group="", columns=())
        wasting = _list_components(sum_runs, now - span_sec)
        trends = _draw_trends(access, names, plain, wasting[:_SHOWN_TRENDS])
        advice = _advise(access, names, plain, wasting[:_ADVISED])
        view = replace(view, advice=advice, trends=trends)
        changes = [(one.component, change) for one in trends for change in one.changes[:1]]
        worse = [
            (component, change)
            for component, change in changes
            if change.verdict == "worse" and change.time >= now - WEEK_SEC
        ]
    return render_form(
        "perf_fleet.html",
        access,
        choice,
        problem,
        experiments,
        view=view,
        worse_trends=worse,
        by_offered=[(name, name) for name in GROUPS],
        since=since,
    )


@handle_errors
def trend(access: Access) -> Response:
    """Show a metric of a component over its past; without a component, the largest ones."""
    choice, problem = read_choice()
    experiments = access.experiments()
    metric = request.args.get("metric", "").strip().removeprefix("metrics.") or DEFAULT_METRIC
    param = request.args.get("param", "").strip().removeprefix("params.")
    any_hardware = bool(request.args.get("any_hardware"))
    component = choice.equal.get("component", "")
    one, trends, found = None, [], []
    offered: Sequence[Field] = ()
    if component and not problem:
        past, problem = _find_past(access, experiments, choice, metric, param)
        found, offered = past.runs, past.offered
        try:
            if found:
                one = build_trend(component, metric, found,
                                  same_params=[param] if param else [],
                                  any_hardware=any_hardware)  # fmt: skip
        except MlflowPerfError as error:
            problem = str(error)
    elif not problem:
        names, since = _narrow(experiments, choice), time.time() - _TREND_SEC
        wasting = _list_components(_make_sum_runs(access, names, [since]), since)
        trends = _draw_trends(access, names, choice, wasting[:_MOST_TRENDS])
    field = read_field(metric)
    ours = [key for key in _ALL_KEYS if any(key in run.metrics for run in found[:1])]
    return render_form(
        "perf_trend.html",
        access,
        choice,
        problem,
        experiments,
        trend=one,
        trends=trends,
        metric=metric,
        metric_name=field.label if field is not None else metric,
        metrics_offered=[*(f.key for f in offered if is_users_metric(f.key)), *ours],
        metric_column=field.name if field is not None else "",
        param=param,
        params_offered=[f.key for f in offered if f.kind == "param"],
        any_hardware=any_hardware,
    )


def _narrow(experiments: Mapping[str, str], choice: Choice) -> dict[str, str]:
    """Return the experiments of the choice that the user may read: id → name."""
    chosen = choice.experiments or experiments
    return {key: experiments[key] for key in chosen if key in experiments}


def _make_sum_runs(
    access: Access, experiments: Mapping[str, str], edges: Sequence[float]
) -> SumRuns:
    """Return what sums up the runs of experiments between edges; it reads each grouping once."""

    @cache
    def read(by: str) -> list[Sums] | None:
        return access.sums(list(experiments), by, [int(1000 * edge) for edge in edges])

    def sum_runs(by: str, since: float | None, until: float | None) -> list[Sums] | None:
        by_week = by == "week"
        found = read("component" if by_week else by)
        if found is None:
            return None
        first = 0 if since is None else edges.index(since) + 1
        last = len(edges) if until is None else edges.index(until)
        return add_up(
            replace(one, group=one.week if by_week else one.group, week=0, part=0)
            for one in choose_parts(found, first, last)
        )

    return sum_runs


def _list_components(sum_runs: SumRuns, since: float) -> list[FleetRow]:
    """Return the components that left CPU hours unused, the most first."""
    rows = build_rows("component", sum_runs("component", since, None) or [], {})
    return [row for row in rows if row.group]


def _find_past(
    access: Access, experiments: Mapping[str, str], choice: Choice, metric: str, param: str = ""
) -> tuple[Found, str]:
    """Return a component's finished runs, newest first, and what is wrong with the choice."""
    equal = {**choice.equal, "status": "FINISHED"}
    columns = (f"params.{param}",) if param else ()
    limit = min(choice.limit, _RUNS_OF_TREND)
    past = replace(choice, equal=equal, columns=columns, sort="-started", limit=limit, group="")
    keys = [*HISTORY_KEYS, *_ALL_KEYS, metric]
    return find_runs(access, experiments, past, keys=keys)


def _draw_trends(
    access: Access, experiments: Mapping[str, str], choice: Choice, rows: Sequence[FleetRow]
) -> list[Trend]:
    """Return the trends of the durations of components."""
    newest = replace(
        choice, equal={**choice.equal, "status": "FINISHED"}, limit=_RUNS_OF_GALLERY, columns=()
    )
    keys = [*HISTORY_KEYS, DEFAULT_METRIC]
    past = access.newest_runs(list(experiments), newest, [row.group for row in rows], keys)
    trends = []
    for row in rows:
        if len(runs := past.get(row.group, [])) > 1:
            with suppress(MlflowPerfError):  # no run has a duration
                trends.append(build_trend(row.group, DEFAULT_METRIC, runs))
    return trends


def _advise(
    access: Access, experiments: Mapping[str, str], choice: Choice, rows: Sequence[FleetRow]
) -> list[tuple[str, str]]:
    """Return what would change what components wasted, by component."""
    wasting = [row for row in rows if row.figures["unused_cpu_hours"]]
    newest = replace(choice, limit=2 * RUNS_OF_EACH)
    names = [row.group for row in wasting]
    found = access.newest_runs(list(experiments), newest, names, None)
    advice, begin = [], time.monotonic()
    for i, row in enumerate(wasting):
        if runs := found.get(row.group, []):
            until = begin + (i + 1) * _READ_SEC / _ADVISED
            read = _read_documents(access, row.group, runs, until)
            advice.append((row.group, advise_component(row, read)))
    return advice


def _read_documents(
    access: Access, component: str, runs: Sequence[PerfRun], until: float
) -> list[PerfRun]:
    """Return the newest runs that hold figures, as `advise` reads them.

    The metrics do not say what mlflow-perf held, nor how long threads waited for CPUs: with runs
    whose documents are not read in time, advice is a lower bound, and says so.

    Args:
        access: Reads them.
        component: The component whose part of each run is wanted.
        runs: Its newest runs.
        until: When to read no further documents, monotonic seconds; one is read in any case.
    """
    found: list[PerfRun] = []
    for run in runs:
        if len(found) == RUNS_OF_EACH:
            break
        own = run
        if run.node_count <= _MOST_NODES and (not found or time.monotonic() < until):
            whole = access.with_document(run)
            others = {} if whole.document is None else whole.document.components
            own = replace(whole, document=others.get(component, whole.document))
        if own.has_figures:
            found.append(own)
    return found
