"""The list of runs, as a page and as CSV, and the scatter plot of two of its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from flask import Response, request

from mlflow_perf.errors import SettingError
from mlflow_perf.model.metrics import find_metric
from mlflow_perf.web.access import Access
from mlflow_perf.web.answers import HEADERS, handle_errors, render
from mlflow_perf.web.choice import Choice, explain_condition
from mlflow_perf.web.csv_file import MOST_ROWS, write_csv
from mlflow_perf.web.fields import COLUMNS, read_field, read_number
from mlflow_perf.web.listing import build_listing, prepare_runs
from mlflow_perf.web.scatter import build_scatter
from mlflow_perf.web.table import OUR_KEYS, Found

_DEFAULT_UP = "run_duration_sec"
_MOST_BYTES = 2_000_000
_FEWEST_RUNS = 20


def read_choice() -> tuple[Choice, str]:
    """Return the choice in the request's address, and a sentence on its error, or `""`."""
    return Choice.read({name: request.args.getlist(name) for name in request.args})


def find_runs(
    access: Access,
    experiments: Mapping[str, str],
    choice: Choice,
    problem: str = "",
    *,
    keys: Sequence[str] = OUR_KEYS,
) -> tuple[Found, str]:
    """Return the chosen runs, or none and a sentence on the error in the choice."""
    from mlflow.exceptions import MlflowException

    if problem:
        return Found([]), problem
    searched = [e for e in choice.experiments or experiments if e in experiments]
    try:
        found = access.runs(searched, choice, keys)
    except SettingError as error:
        return Found([]), str(error)
    except MlflowException as error:
        if error.error_code not in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST"):
            raise
        return Found([]), explain_condition(choice.query) if choice.query else str(error.message)
    order, named = choice.order, choice.sort.removeprefix("-")
    is_known = order.kind != "metric" or find_metric(order.key) is not None
    # Runs without a value come last: if the first page has none, no run has one.
    if not (is_known or choice.page) and all(order.read(run) is None for run in found.runs):
        names = {field.key: field.name for field in found.offered}
        near = get_close_matches(order.key, names, 1)
        hint = f": did you mean {names[near[0]]!r}?" if near else "."
        return Found([]), f"There is no column {named[:60]!r} in these runs{hint}"
    return found, ""


def render_form(
    template: str,
    access: Access,
    choice: Choice,
    problem: str,
    experiments: Mapping[str, str],
    **values: Any,
) -> Response:
    """Return a page with the form of the choice; with a problem, its sentence and status 400."""
    return render(
        template,
        status=400 if problem else 200,
        choice=choice,
        problem=problem,
        experiments=experiments,
        workspaces=access.workspaces(),
        **values,
    )


@handle_errors
def runs(access: Access) -> Response:
    """List the runs that hold performance data, in a page of at most 2 MB."""
    choice, problem = read_choice()
    experiments = access.experiments()
    shown = choice
    while True:
        found, problem = find_runs(access, experiments, shown, problem)
        listing = build_listing(found, shown, experiments)
        form = (access, choice, problem, experiments)
        answer = render_form("perf_list.html", *form, listing=listing)
        size, count = len(answer.get_data()), len(found.runs)
        if size <= _MOST_BYTES or count <= _FEWEST_RUNS:
            return answer
        # Many columns of long texts: the page has fewer runs, and the next one begins after them.
        shown = replace(choice, limit=max(_FEWEST_RUNS, int(0.9 * count * _MOST_BYTES / size)))


@handle_errors
def runs_csv(access: Access) -> Response:
    """Return the chosen runs as CSV, all pages of them up to a bound."""
    choice, problem = read_choice()
    experiments = access.experiments()
    found, problem = find_runs(access, experiments, replace(choice, limit=MOST_ROWS), problem)
    if problem:
        raise SettingError(problem)
    headers = {**HEADERS, "Content-Disposition": 'attachment; filename="runs.csv"'}
    return Response(write_csv(found, choice, experiments), 200, headers, mimetype="text/csv")


@handle_errors
def scatter(access: Access) -> Response:
    """Show one field of the chosen runs against another."""
    choice, problem = read_choice()
    experiments = access.experiments()
    across = read_field(request.args.get("x", ""))
    up = read_field(request.args.get("y", "")) or read_field(_DEFAULT_UP)
    by = read_field(choice.group) if choice.group else None
    names = [field.name for field in (across, up, by) if field is not None]
    columns = () if across is None else tuple(names)
    found, problem = find_runs(access, experiments, replace(choice, columns=columns), problem)
    offered = [*found.offered]
    if across is None:
        # The most frequent parameter that is a number; without any, the start of a run.
        numeric = (
            field
            for field in found.columns
            if field.kind == "param"
            and all(
                value is None or read_number(value) is not None
                for value in (field.read(run) for run in found.runs)
            )
        )
        across = next(numeric, read_field("started"))
        others = [field for field in (up, by) if field and field.kind in ("metric", "param")]
        known = [field.key in OUR_KEYS or field in found.columns for field in others]
        if not problem and across is not None and not all(known):
            chosen = replace(choice, columns=(across.name, *names))
            found, problem = find_runs(access, experiments, chosen)
    logs = bool(request.args.get("logx")), bool(request.args.get("logy"))
    view = None
    if not problem and across is not None and up is not None:
        view = build_scatter(prepare_runs(found), across, up, by, logs=logs)
    ours = [(column.key, column.label) for column in COLUMNS]
    own = [(field.name, field.label) for field in offered]
    return render_form(
        "perf_scatter.html",
        access,
        choice,
        problem,
        experiments,
        scatter=view,
        across=across,
        up=up,
        logs=logs,
        more=bool(found.next_page),
        fields=[*own, *ours, ("started", "Started")],
        numbers=[*ours, *((f.name, f.label) for f in offered if f.kind == "metric")],
        words=tuple((f.name, f.label) for f in offered if f.kind == "param"),
    )
