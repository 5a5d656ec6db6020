"""Reads the hours and costs of all runs of a store, summed up by group.

MLflow's own search builds an object for each run, 4.8 s for 1,000 runs. Where the store is a SQL
database that this process can reach, the sums are made there, by bound statements that only read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.format import clean_metric_key
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.model.document import BROKEN
from mlflow_perf.tracking.failed_workflows import list_failed, search_failed
from mlflow_perf.tracking.fleet_sql import query_sums
from mlflow_perf.tracking.fleet_sums import (
    FIGURES,
    MONDAY_MS,
    USER_TAG,
    WEEK_MS,
    Choice,
    Sums,
    add_up,
)
from mlflow_perf.tracking.load import fetch_run, list_experiments, make_client
from mlflow_perf.tracking.perf_run import MEASURED_TAG, PARENT_TAG, TAG, PerfRun, is_figure
from mlflow_perf.tracking.search import iterate_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_NAMED_MAX = 200


def sum_runs(by: str, since_ms: int | None = None, until_ms: int | None = None) -> list[Sums]:
    """Return the sums of all active runs with performance data, by group, in any order.

    A workflow that failed though none of its steps did counts as a run that failed.

    Args:
        by: One of `GROUPS`.
        since_ms: Only runs that started then or later, Unix time in milliseconds.
        until_ms: Only runs that started before.

    Raises:
        RunNotFoundError: When the store does not answer.
    """
    client = make_client()
    choice = Choice(by, list(list_experiments(client)), since_ms, until_ms)
    store = find_sql_store(client)
    return _sum_searched(client, choice) if store is None else query_sums(store, choice)


def find_sql_store(client: MlflowClient) -> Any:
    """Return the client's store if it is a SQL database with the tables that we know, else None."""
    try:
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        store = client._tracking_client.store  # noqa: SLF001 - MLflow has no public way to it
    except (ImportError, AttributeError):
        return None
    return store if isinstance(store, SqlAlchemyStore) else None


def _sum_searched(client: MlflowClient, choice: Choice) -> list[Sums]:
    """Return the same sums from MLflow's search, for stores behind a server."""
    conditions = []
    if choice.since_ms is not None:
        conditions.append(f"attributes.start_time >= {choice.since_ms}")
    if choice.until_ms is not None:
        conditions.append(f"attributes.start_time < {choice.until_ms}")
    read_group: dict[str, Callable[[Run], Any]] = {
        "experiment": lambda run: int(run.info.experiment_id),
        "user": lambda run: run.data.tags.get(USER_TAG) or run.info.user_id,
        "component": lambda run: run.data.tags.get(f"{TAG}component"),
        "workflow": lambda run: run.data.tags.get(PARENT_TAG),
        "week": lambda run: ((run.info.start_time or 0) - MONDAY_MS) // WEEK_MS,
    }
    found: dict[Any, Sums] = {}
    ids, failed_steps, inside = set[str](), set[tuple[str, str]](), list[tuple[str, Sums]]()
    query = " and ".join([f"tags.`{TAG}component` LIKE '%'", *conditions])
    for run in iterate_runs(client, choice.experiments, query):
        known = PerfRun.from_mlflow(run)
        ids.add(run.info.run_id)
        if known.status in BROKEN and known.parent_id:
            failed_steps.add((known.parent_id, run.info.experiment_id))
        for own in (known, *known.components.values()):
            by_component = choice.by == "component"
            group = own.component if by_component else read_group[choice.by](run)
            counts = by_component or own is known
            figures = read_figures(client, run, own)
            sums = Sums(group, int(counts), int(counts and known.status in BROKEN), figures)
            above = run.data.tags.get(MEASURED_TAG, run.info.run_id)
            if own is known and above != run.info.run_id:
                # Its figures count unless those of the other run do, which may come later.
                inside.append((above, sums))
                sums = replace(sums, figures=dict.fromkeys(FIGURES))
            found[group] = found[group].add(sums) if group in found else sums
    for above, sums in inside:
        if above not in ids:
            found[sums.group] = found[sums.group].add(replace(sums, runs=0, failed=0))
    names: dict[Any, Any] = {group: group for group in found}
    if choice.by == "workflow":
        for group in list(filter(None, found))[:_NAMED_MAX]:
            with suppress(RunNotFoundError):
                names[group] = fetch_run(client, group).info.run_name or group
    failed = search_failed(client, choice, conditions, failed_steps)
    return add_up(
        [
            *(Sums(names[group], s.runs, s.failed, s.figures) for group, s in found.items()),
            *list_failed(failed, choice),
        ]
    )


def read_figures(client: MlflowClient, run: Run, own: PerfRun) -> dict[str, float | None]:
    """Return a component's `FIGURES` in a run; None for a missing figure.

    Args:
        client: A client of the store, for runs of several nodes without figures of the whole run.
        run: The run.
        own: The same run, as the component reported it.
    """
    prefix = "" if own.tags is run.data.tags else f"{clean_metric_key(own.component or '')}/"
    steps = {metric.key: metric.step for metric in run.data._metric_objs}  # noqa: SLF001
    found: dict[str, float | None] = {}
    for name in FIGURES:
        value = own.metrics.get(f"run_{name}")
        key = f"{prefix}node_{name}"
        if value is None and steps.get(key, 0) > 0:
            # MLflow shows the last node's value; the step is the index of the node.
            history = [one for one in client.get_metric_history(run.info.run_id, key)
                       if is_figure(one.value)]  # fmt: skip
            history.sort(key=lambda one: (one.timestamp, one.value))
            value = sum({one.step: one.value for one in history}.values())
        found[name] = own.metrics.get(f"node_{name}") if value is None else value
    return found
