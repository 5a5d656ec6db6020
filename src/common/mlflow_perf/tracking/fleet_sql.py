"""Sums up the runs of a SQL store in the database, by bound statements that only read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mlflow_perf.core.format import clean_metric_key
from mlflow_perf.core.json_io import from_json
from mlflow_perf.tracking.fleet_sums import (
    FAILED,
    FIGURES,
    MONDAY_MS,
    USER_TAG,
    WEEK_MS,
    Choice,
    Sums,
    add_up,
)
from mlflow_perf.tracking.perf_run import PARENT_TAG, TAG

_COMPONENTS_AT_ONCE = 50


def query_sums(store: Any, choice: Choice) -> list[Sums]:
    """Return the sums over some runs of MLflow's SQL store, made by the database."""
    with store.ManagedSessionMaker() as session, _use_large_cache(session):
        is_sqlite = session.get_bind().dialect.name == "sqlite"
        statement = build_statement(_list_logged(session), choice, is_sqlite=is_sqlite)
        found = [
            Sums(
                row.grp,
                row.runs,
                int(row.failed or 0),
                {name: getattr(row, name, None) for name in FIGURES},
            )
            for row in session.execute(statement)
        ]
        names = list_further_components(session)
        for at in range(0, len(names), _COMPONENTS_AT_ONCE):
            some = names[at : at + _COMPONENTS_AT_ONCE]
            found += _sum_further(session, some, choice)
        if names and choice.by == "component":
            found += _count_further(session, choice)
    return add_up(found)


def build_statement(logged: Mapping[str, Sequence[str]], choice: Choice, *, is_sqlite: bool) -> Any:
    """Return the statement that sums up runs by group, with the figures of the first component.

    SQLite looks each value up by its key; other databases pivot the values of all runs once and
    join them by hash, which a lookup per run would be slower than.

    Args:
        logged: Each figure that some run has → the metrics that hold it, the preferred one first.
        choice: The runs.
        is_sqlite: Whether the database is SQLite.
    """
    from sqlalchemy import Float, cast, func, select

    run, group, broken, joins = _group_runs(choice.by)
    keys = [key for names in logged.values() for key in names]
    values, pivot = _select_values(keys, choice, is_sqlite=is_sqlite)
    sums = [
        func.sum(cast(func.coalesce(*(values[key] for key in names), None), Float)).label(name)
        for name, names in logged.items()
    ]
    statement = select(
        group.label("grp"), func.count().label("runs"), func.sum(broken).label("failed"), *sums
    ).select_from(run)
    if pivot is not None:
        statement = statement.outerjoin(pivot, pivot.c.run_uuid == run.run_uuid)
    for table, condition, needed in joins:
        statement = statement.join(table, condition, isouter=not needed)
    return statement.where(*_choose_runs(run, choice)).group_by(group)


def _group_runs(by: str) -> tuple[Any, Any, Any, list[tuple[Any, Any, bool]]]:
    """Return the table of runs, the group, whether a run failed, and the tables to join.

    A table to join comes with its condition, and whether a run without a row in it is left out.
    """
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import and_, case, func, or_
    from sqlalchemy.orm import aliased

    run = models.SqlRun

    def join_tag(key: str) -> tuple[Any, Any]:
        own = aliased(models.SqlTag)
        return own, and_(own.run_uuid == run.run_uuid, own.key == key)

    component, has_component = join_tag(f"{TAG}component")
    status, has_status = join_tag(f"{TAG}status")
    user, has_user = join_tag(USER_TAG)
    parent, has_parent = join_tag(PARENT_TAG)
    parent_run = aliased(run)
    joins = [(component, has_component, True), (status, has_status, False)]
    if by == "user":
        joins.append((user, has_user, False))
    if by == "workflow":
        joins.append((parent, has_parent, False))
        joins.append((parent_run, parent_run.run_uuid == parent.value, False))
    group = {
        "experiment": run.experiment_id,
        "user": func.coalesce(user.value, run.user_id),
        "component": component.value,
        "workflow": func.coalesce(parent_run.name, parent.value),
        "week": (run.start_time - MONDAY_MS) // WEEK_MS,
    }[by]
    broken = case((or_(run.status.in_(FAILED), status.value.in_(FAILED)), 1), else_=0)
    return run, group, broken, joins


def _choose_runs(run: Any, choice: Choice) -> list[Any]:
    """Return the conditions that a run must meet."""
    experiments = [int(experiment) for experiment in choice.experiments]
    found = [run.lifecycle_stage == "active", run.experiment_id.in_(experiments)]
    return found + _choose_times(run, choice)


def _choose_times(run: Any, choice: Choice) -> list[Any]:
    found = [] if choice.since_ms is None else [run.start_time >= choice.since_ms]
    return found if choice.until_ms is None else [*found, run.start_time < choice.until_ms]


def _select_values(
    keys: Sequence[str], choice: Choice, *, is_sqlite: bool
) -> tuple[dict[str, Any], Any]:
    """Return metric → the expression of a run's value, and the subquery to join, if any."""
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import case, func, select
    from sqlalchemy.orm import aliased

    run, metric = models.SqlRun, models.SqlLatestMetric
    if is_sqlite:
        values: dict[str, Any] = {}
        for key in keys:
            own = aliased(metric)
            mine = (own.key == key, own.run_uuid == run.run_uuid, own.is_nan.is_(False))
            values[key] = select(_add_nodes(own)).where(*mine).scalar_subquery()
        return values, None
    columns = [
        func.max(case((metric.key == key, _add_nodes(metric)))).label(f"v{i}")
        for i, key in enumerate(keys)
    ]
    found = select(metric.run_uuid, *columns)
    found = found.where(metric.key.in_(keys), metric.is_nan.is_(False))
    if times := _choose_times(run, choice):
        found = found.where(metric.run_uuid.in_(select(run.run_uuid).where(*times)))
    pivot = found.group_by(metric.run_uuid).subquery()
    return {key: pivot.c[f"v{i}"] for i, key in enumerate(keys)}, pivot


def _add_nodes(latest: Any) -> Any:
    """Return the value of a row of the latest metrics, summed up over the nodes of its run.

    A metric's step is the index of its node, and the row holds the last node alone. Runs of
    several nodes have the sum as a metric too, unless their artifacts could not be uploaded.
    """
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import and_, case, exists, func, or_, select
    from sqlalchemy.orm import aliased

    one, newer = aliased(models.SqlMetric), aliased(models.SqlMetric)
    is_later = or_(
        newer.timestamp > one.timestamp,
        and_(newer.timestamp == one.timestamp, newer.value > one.value),
    )
    same = (newer.run_uuid == one.run_uuid, newer.key == one.key, newer.step == one.step)
    whole = (
        select(func.sum(one.value))
        .where(one.run_uuid == latest.run_uuid, one.key == latest.key, one.is_nan.is_(False))
        .where(~exists().where(*same, newer.is_nan.is_(False), is_later))
        .correlate(latest)
        .scalar_subquery()
    )
    return case((latest.step == 0, latest.value), else_=whole)


def list_further_components(session: Any) -> list[str]:
    """Return the names of all components that were not the first to report to their run."""
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import select

    tag = models.SqlTag
    lists = session.execute(select(tag.value).where(tag.key == f"{TAG}components").distinct())
    return sorted({name for (text,) in lists for name in _parse_names(text)})


def _parse_names(text: str) -> list[str]:
    """Return the components in a tag; none if it is damaged."""
    try:
        found = from_json(text)
    except ValueError:
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _sum_further(session: Any, components: Sequence[str], choice: Choice) -> list[Sums]:
    """Return the figures of further components, which are metrics below their names; no counts."""
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import and_, case, exists, func, or_, select
    from sqlalchemy.orm import aliased

    metric, preferred = models.SqlLatestMetric, aliased(models.SqlLatestMetric)
    meaning, better = {}, {}
    for component in components:
        prefix = clean_metric_key(component)
        for name in FIGURES:
            of_run, of_node = f"{prefix}/run_{name}", f"{prefix}/node_{name}"
            meaning[of_run] = meaning[of_node] = (component, name)
            better[of_node] = of_run
    run, group, _, joins = _group_runs(choice.by)
    listed = aliased(models.SqlTag)
    has_better = exists().where(
        preferred.run_uuid == metric.run_uuid,
        preferred.key == case(better, value=metric.key),
        preferred.is_nan.is_(False),
    )
    statement = select(group.label("grp"), metric.key, func.sum(_add_nodes(metric)).label("total"))
    statement = statement.select_from(metric).join(run, run.run_uuid == metric.run_uuid)
    is_listed = and_(listed.run_uuid == run.run_uuid, listed.key == f"{TAG}components")
    statement = statement.join(listed, is_listed)
    for table, condition, needed in joins:
        statement = statement.join(table, condition, isouter=not needed)
    statement = statement.where(
        metric.key.in_(list(meaning)),
        metric.is_nan.is_(False),
        or_(metric.key.not_in(list(better)), ~has_better),
        *_choose_runs(run, choice),
    )
    found = []
    for row in session.execute(statement.group_by(group, metric.key)):
        component, name = meaning[row.key]
        figures = dict.fromkeys(FIGURES) | {name: row.total}
        found.append(Sums(component if choice.by == "component" else row.grp, 0, 0, figures))
    return found


def _count_further(session: Any, choice: Choice) -> list[Sums]:
    """Return how many runs each further component reported to."""
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import and_, func, select
    from sqlalchemy.orm import aliased

    run, _, broken, joins = _group_runs("component")
    listed = aliased(models.SqlTag)
    statement = select(listed.value, func.count().label("runs"), func.sum(broken).label("failed"))
    is_listed = and_(listed.run_uuid == run.run_uuid, listed.key == f"{TAG}components")
    statement = statement.select_from(run).join(listed, is_listed)
    for table, condition, needed in joins:
        statement = statement.join(table, condition, isouter=not needed)
    statement = statement.where(*_choose_runs(run, choice)).group_by(listed.value)
    return [
        Sums(name, row.runs, int(row.failed or 0), dict.fromkeys(FIGURES))
        for row in session.execute(statement)
        for name in _parse_names(row.value)
    ]


def _list_logged(session: Any) -> dict[str, list[str]]:
    """Return each figure that some run has, with the metrics that hold it; one lookup for each."""
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import select

    metric = models.SqlLatestMetric
    logged: dict[str, list[str]] = {}
    for name in FIGURES:
        for key in (f"run_{name}", f"node_{name}"):
            if session.execute(select(metric.key).where(metric.key == key).limit(1)).first():
                logged.setdefault(name, []).append(key)
    return logged


@contextmanager
def _use_large_cache(session: Any) -> Iterator[None]:
    """Let SQLite keep the pages of a large store while it is read; its own limit is 2 MB."""
    from sqlalchemy import text

    if session.get_bind().dialect.name != "sqlite":
        yield
        return
    before = session.execute(text("PRAGMA cache_size")).scalar()
    session.execute(text("PRAGMA cache_size = -262144"))
    try:
        yield
    finally:
        session.execute(text(f"PRAGMA cache_size = {int(before)}"))
