"""The tools of `mlflow-perf mcp`: each returns text of bounded length, without paths or secrets."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from mlflow_perf._version import __version__
from mlflow_perf.analysis.component_history import (
    DEFAULT_METRIC,
    find_component_runs,
    read_history,
)
from mlflow_perf.analysis.explanations import explain, hide_private
from mlflow_perf.analysis.fleet import sum_fleet
from mlflow_perf.analysis.markdown import escape
from mlflow_perf.analysis.profile_changes import compare_profiles
from mlflow_perf.analysis.rightsize import right_size
from mlflow_perf.analysis.sized_steps import size_each
from mlflow_perf.analysis.step_runs import load_step_runs
from mlflow_perf.core.extras import needing
from mlflow_perf.core.format import clock_time, parse_age
from mlflow_perf.core.json_io import to_json
from mlflow_perf.errors import MlflowPerfError, RunNotFoundError
from mlflow_perf.model.profile import list_functions
from mlflow_perf.tracking.load import bare_id, is_run_id
from mlflow_perf.tracking.notices import tell
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.search import find_runs, get_run

ANSWER_MAX = 8000
"""The longest answer, in characters: about 2,000 tokens."""

_RUNS_MAX = 50
_ROWS_MAX = 20
_HISTORY_MAX = 200


def search_runs(component: str = "", filter: str = "", limit: int = 10) -> Any:  # noqa: A002
    """Find runs with performance data, newest first: id, component, status, duration, verdict.

    Args:
        component: Only runs of this component; empty for all.
        filter: A condition in MLflow's search language, such as "params.rows = '9'".
        limit: At most so many runs, up to 50.
    """
    found = find_runs(
        component or None,
        filter_string=filter,
        max_results=max(1, min(limit, _RUNS_MAX)),
        documents=False,
    )
    return [
        {
            "run_id": run.run_id,
            "component": run.component,
            "status": run.status,
            "started": clock_time(run.started),
            "duration_sec": run.metrics.get("run_duration_sec", run.duration_sec),
            "held_back_by": run.verdict or None,
        }
        for run in found
    ]


def explain_run(run_id: str) -> Any:
    """Explain what a run's time went into: findings, phases and functions, as Markdown."""
    return explain(_check_id(run_id))


def compare_runs(run_id: str, other_run_id: str) -> Any:
    """Explain what changed from one run to another: time, functions, parameters, metrics."""
    return explain(_check_id(run_id), _check_id(other_run_id))


def history(component: str, metric: str = DEFAULT_METRIC) -> Any:
    """Return a metric of a component over its past, and the runs at which its level changed."""
    data = read_history(component, metric, last=_HISTORY_MAX).as_dict()
    points = data.pop("points")
    return {**data, "runs": len(points), "newest_points": points[-_ROWS_MAX:]}


def advise(run_id: str = "", component: str = "") -> Any:
    """Return how many CPUs, how much memory, nodes and GPUs a run or a component should ask for.

    Args:
        run_id: A run; for a workflow, each step's advice is learned from all tasks of the step.
        component: A component, from its newest 200 runs.
    """
    if bool(run_id) == bool(component):
        raise RunNotFoundError("Give one of run_id and component.")
    if component:
        silent: list[PerfRun] = []
        found = find_component_runs(component, last=_HISTORY_MAX, documents=True, silent=silent)
        return size_each({component: found}, right_size, silent)[component].as_dict()
    sizes = size_each(load_step_runs([get_run(_check_id(run_id))])[0].group_tasks(), right_size)
    shown = {name: size.as_dict() for name, size in [*sizes.items()][:_ROWS_MAX]}
    if len(shown) == 1:
        return next(iter(shown.values()))
    more = {"left_out": len(sizes) - len(shown)} if len(sizes) > len(shown) else {}
    return {"steps": shown, **more}


def fleet(by: str = "experiment", since: str = "30d") -> Any:
    """Sum up hours and cost that all runs held and left unused, most unused first.

    Args:
        by: experiment, user, component, workflow or week.
        since: How far back, such as 24h, 30d or 4w.
    """
    rows = sum_fleet(by, since=time.time() - parse_age(since))
    shown = [row.as_dict() for row in rows[:_ROWS_MAX]]
    return {"groups": len(rows), "most_unused": shown}


def profile(run_id: str, other_run_id: str = "") -> Any:
    """Return the functions that a run's time went into, or that account for a change."""
    sides = []
    for name in (run_id, other_run_id) if other_run_id else (run_id,):
        run = get_run(_check_id(name))
        nodes = [] if run.document is None else run.document.all_nodes()
        sides.append([node for node in nodes if isinstance(node.extra.get("profile"), dict)])
        if not sides[-1]:
            raise RunNotFoundError(f"The run {name!r} has no profile.")
    if len(sides) == 2:
        change = compare_profiles(*sides)
        if change is None:
            raise RunNotFoundError("The two runs have no functions that can be compared.")
        rows = [one.as_dict() for one in change.functions[:_ROWS_MAX]]
        return {"change_s": change.change_s, "sentence": change.sentence, "functions": rows}
    longest = max(sides[0], key=lambda node: node.duration_sec or 0.0)
    return {"functions": list_functions(longest)[:_ROWS_MAX]}


TOOLS: tuple[Callable[..., Any], ...] = (
    search_runs, explain_run, compare_runs, history, advise, fleet, profile,
)  # fmt: skip
"""The tools, by the names that an agent sees."""


def make_server() -> Any:
    """Return the server with all tools, which are marked as read-only.

    Raises:
        MissingDependencyError: When fastmcp is not installed.
    """
    with needing("fastmcp", "mcp"):
        from fastmcp import FastMCP
        from fastmcp.exceptions import ToolError
    server: Any = FastMCP("mlflow-perf", version=__version__)
    for tool in TOOLS:
        bound = _bound(tool, ToolError)
        server.tool(bound, annotations={"readOnlyHint": True, "openWorldHint": False})
    return server


def _bound(tool: Callable[..., Any], failure: type[Exception]) -> Callable[..., str]:
    """Return a tool with its answer as text: hidden parts, bounded length, errors as a sentence."""

    @wraps(tool)
    def answer(*args: Any, **kwargs: Any) -> str:
        notes: list[str] = []
        token = tell.set(notes.append)
        try:
            found = tool(*args, **kwargs)
        except MlflowPerfError as error:
            raise failure(hide_private(" ".join([str(error), *notes]))) from None
        finally:
            tell.reset(token)
        notes = list(dict.fromkeys(notes))
        if notes and isinstance(found, dict):
            found = {"notes": notes, **found}
        elif notes and isinstance(found, str):
            found = "\n".join([*(f"> {escape(hide_private(note))}" for note in notes), "", found])
        # Markdown has no private parts any more, and its backslashes are no paths.
        clean = found if isinstance(found, str) else hide_private(found)
        text = clean if isinstance(clean, str) else to_json(clean)
        for most in (20, 10, 5, 2, 1) if not isinstance(clean, str) else ():
            if len(text) > ANSWER_MAX:
                text = to_json(_cut_lists(clean, most))
        return text if len(text) <= ANSWER_MAX else f"{text[:ANSWER_MAX]}\n… cut: ask for less."

    answer.__annotations__ = {**tool.__annotations__, "return": "str"}
    return answer


def _cut_lists(value: Any, most: int) -> Any:
    """Return plain data with the first elements of each list, and how many more there are."""
    if isinstance(value, dict):
        return {key: _cut_lists(item, most) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    more = [{"left_out": len(value) - most}] if len(value) > most else []
    return [_cut_lists(item, most) for item in value[:most]] + more


def _check_id(run: str) -> str:
    """Return a run id; a path would let an agent read files of this machine.

    Raises:
        RunNotFoundError: When it is none.
    """
    if not is_run_id(run):
        raise RunNotFoundError("Give the id of a run of MLflow.")
    return bare_id(run)
