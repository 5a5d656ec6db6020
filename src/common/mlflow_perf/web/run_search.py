"""Finds the runs of the page by MLflow's own search, for stores without tables that we know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mlflow_perf.errors import SettingError
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.web.choice import RUNNING, Choice, build_search
from mlflow_perf.web.fields import offer_fields
from mlflow_perf.web.table import Found, choose_columns


def search_choice(store: Any, experiments: Sequence[str], choice: Choice) -> Found:
    """Return a page of the runs that hold performance data, and of the jobs that run now.

    Args:
        store: The server's tracking store.
        experiments: Ids of the experiments that the user may read.
        choice: The user's choice.

    Raises:
        mlflow.exceptions.MlflowException: When the condition cannot be searched for.
        SettingError: When MLflow's search language cannot express a value, or there is no such
            page.
    """
    from mlflow.exceptions import MlflowException

    condition, order = build_search(choice)
    try:
        found = search(
            store, experiments, condition, choice.limit, order_by=order, page=choice.page
        )
        if not choice.page:
            found = replace(found, runs=[*_search_running(store, experiments, choice), *found.runs])
    except MlflowException as error:
        # MLflow reports an invalid token as an internal error.
        if not choice.page or error.error_code != "INTERNAL_ERROR":
            raise
        raise SettingError("There is no such page of runs: open the list anew.") from error
    if component := choice.equal.get("component"):
        own = [run.find_component(component) for run in found.runs]
        found = replace(found, runs=[run for run in own if run is not None])
    if wanted := choice.text.casefold():
        parts = [(r, (r.name, r.component, *r.components, r.run_id)) for r in found.runs]
        runs = [r for r, names in parts if any(wanted in (n or "").casefold() for n in names)]
        found = replace(found, runs=runs)
    metrics = Counter(key for run in found.runs for key in run.metrics)
    params = Counter(key for run in found.runs for key in run.params)
    offered = offer_fields(metrics, params, {n for run in found.runs for n in run.components})
    return replace(found, offered=offered, columns=choose_columns(choice, offered))


def search(
    store: Any,
    experiments: Sequence[str],
    query: str,
    limit: int,
    *,
    order_by: Sequence[str] = (),
    page: str = "",
) -> Found:
    """Return a page of the runs that meet a condition.

    Args:
        store: The server's tracking store.
        experiments: Ids of the experiments that the user may read.
        query: The condition.
        limit: Most runs.
        order_by: Their order.
        page: Token of a further page.
    """
    from mlflow.entities import ViewType

    active = ViewType.ACTIVE_ONLY
    runs = store.search_runs(list(experiments), query, active, limit, list(order_by), page or None)
    return Found([PerfRun.from_mlflow(run) for run in runs], runs.token or None)


def _search_running(store: Any, experiments: Sequence[str], choice: Choice) -> list[PerfRun]:
    """Return the jobs that run now and match a condition, and hold no performance data yet."""
    found: dict[str | None, PerfRun] = {}
    for ours in RUNNING:
        condition, order = build_search(choice, ours)
        for run in search(store, experiments, condition, choice.limit, order_by=order).runs:
            if run.component is None:
                found[run.run_id] = run
    return list(found.values())
