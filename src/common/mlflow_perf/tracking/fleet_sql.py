"""Sums up the runs of a SQL store in the database, by bound statements that only read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

from mlflow_perf.core.format import clean_metric_key
from mlflow_perf.core.json_io import from_json
from mlflow_perf.tracking.failed_workflows import list_failed, query_failed
from mlflow_perf.tracking.fleet_runs import bound_time, choose_runs, list_groups
from mlflow_perf.tracking.fleet_sums import FIGURES, Choice, Sums, add_up
from mlflow_perf.tracking.perf_run import BEYOND_FIGURES, MEASURED_TAG, TAG

_COMPONENTS_AT_ONCE = 50
_THREADS_MAX = 4


def query_sums(store: Any, choice: Choice) -> list[Sums]:
    """Return the sums over some runs of MLflow's SQL store, made by the database.

    SQLite looks each figure up by its key for each run, a share of the runs in each of a few
    threads. Other databases read all figures in one pass and join them by hash, which a lookup per
    run would be slower than.
    """
    with store.ManagedSessionMaker() as session, _allow_memory(session):
        # The tag of such runs is about their first component.
        first = replace(choice, nested=_has_nested(session))
        if _is_sqlite(session):
            found = _look_up(store, _list_logged(session), first)
        else:
            found = _sum_values(session, first, {None: ""})
        names = list_further_components(session)
        for at in range(0, len(names), _COMPONENTS_AT_ONCE):
            some = names[at : at + _COMPONENTS_AT_ONCE]
            found += _sum_values(
                session, choice, {name: f"{clean_metric_key(name)}/" for name in some}
            )
        if names and choice.by == "component":
            found += _count_further(session, choice)
        found += list_failed(query_failed(session, choice), choice)
    return add_up(found)


def _look_up(store: Any, logged: Mapping[str, Sequence[str]], choice: Choice) -> list[Sums]:
    """Return the sums of `build_lookup`, made by a thread for each share of the runs.

    SQLite computes a statement in one thread and lets go of the interpreter's lock meanwhile.
    """
    threads = min(_THREADS_MAX, os.cpu_count() or 1)
    # Run ids are random hexadecimal digits, so equal ranges of ids hold equally many runs.
    edges = [None, *(f"{256 * i // threads:02x}" for i in range(1, threads)), None]

    def look_up(ids: tuple[str | None, str | None]) -> list[Sums]:
        with store.ManagedSessionMaker() as session, _allow_memory(session, threads):
            return _read_sums(session, build_lookup(logged, choice, ids))

    with futures.ThreadPoolExecutor(threads) as pool:
        return [sums for part in pool.map(look_up, pairwise(edges)) for sums in part]


def _is_sqlite(session: Any) -> bool:
    return bool(session.get_bind().dialect.name == "sqlite")


def _read_sums(session: Any, statement: Any) -> list[Sums]:
    return [
        Sums(
            row.grp,
            row.runs,
            int(row.failed or 0),
            {name: getattr(row, name, None) for name in FIGURES},
            *_read_parts(row),
        )
        for row in session.execute(statement)
    ]


def build_lookup(
    logged: Mapping[str, Sequence[str]],
    choice: Choice,
    ids: tuple[str | None, str | None] = (None, None),
) -> Any:
    """Return the statement that counts runs by group and looks up their first component's figures.

    Args:
        logged: Each figure that some run has → the metrics that hold it, the preferred one first.
        choice: The runs.
        ids: Only runs whose id is the first of these or after it, and before the second; None for
            no bound.
    """
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import Float, cast, func, select
    from sqlalchemy.orm import aliased

    chosen, run = choose_runs(choice)
    if ids[0] is not None:
        chosen = chosen.where(run.run_uuid >= ids[0])
    if ids[1] is not None:
        chosen = chosen.where(run.run_uuid < ids[1])
    figures = []
    for name, keys in logged.items():
        values = []
        for key in keys:
            own = aliased(models.SqlLatestMetric)
            mine = (own.key == key, own.run_uuid == run.run_uuid, *hold_figures(own))
            value = _add_nodes(own.run_uuid, key, own.step, own.value)
            values.append(select(value).where(*mine).scalar_subquery())
        figure = _leave_out(chosen.selected_columns, func.coalesce(*values, None), choice)
        figures.append(cast(figure, Float).label(name))
    chosen = chosen.add_columns(*figures)
    # The limit keeps SQLite from looking up the figures in the order of the groups.
    each = (chosen.limit(-1) if figures else chosen).subquery()
    counts = [func.count().label("runs"), func.sum(each.c.broken).label("failed")]
    sums = [func.sum(each.c[name]).label(name) for name in logged]
    groups = list_groups(each, choice)
    return select(*groups, *counts, *sums).group_by(*groups)


def build_sums(choice: Choice, prefixes: Mapping[str | None, str]) -> Any:
    """Return the statement that counts runs and sums up figures by group in one pass.

    The metrics of a run become one row first, so that a figure of its nodes counts only where the
    run as a whole has none. Each sum is a column of its own: nothing is sorted.

    Args:
        choice: The runs.
        prefixes: Component → what its metrics begin with; None → "" for the first component.
    """
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import case, func, select

    metric = models.SqlLatestMetric
    names = [(prefix, name) for prefix in prefixes.values() for name in FIGURES]
    of_run = [f"{prefix}run_{name}" for prefix, name in names]
    of_node = [f"{prefix}node_{name}" for prefix, name in names]
    columns = []
    for i, key in enumerate(of_run):
        columns.append(func.max(case((metric.key == key, metric.value))).label(f"run_{i}"))
    for i, key in enumerate(of_node):
        columns.append(func.max(case((metric.key == key, metric.value))).label(f"node_{i}"))
        columns.append(func.max(case((metric.key == key, metric.step))).label(f"step_{i}"))
    each = select(metric.run_uuid, *columns).group_by(metric.run_uuid)
    each = each.where(metric.key.in_([*of_run, *of_node]), *hold_figures(metric))
    bounds = bound_time(choice, models.SqlRun)
    if bounds:
        each = each.where(metric.run_uuid.in_(select(models.SqlRun.run_uuid).where(*bounds)))
    rows = each.subquery()
    chosen = choose_runs(choice, with_further=None not in prefixes)[0].subquery()
    sums = []
    for i, key in enumerate(of_node):
        whole = _add_nodes(rows.c.run_uuid, key, rows.c[f"step_{i}"], rows.c[f"node_{i}"])
        figure = func.coalesce(rows.c[f"run_{i}"], whole)
        sums.append(func.sum(_leave_out(chosen.c, figure, choice)))
    counts = [func.count().label("runs"), func.sum(chosen.c.broken).label("failed")]
    groups = list_groups(chosen, choice)
    statement = select(*sums, *groups, *counts).select_from(chosen)
    statement = statement.outerjoin(rows, rows.c.run_uuid == chosen.c.run_uuid)
    return statement.group_by(*groups)


def _sum_values(session: Any, choice: Choice, prefixes: Mapping[str | None, str]) -> list[Sums]:
    """Return the sums of `build_sums`; the runs of further components are not counted."""
    found = []
    for row in session.execute(build_sums(choice, prefixes)):
        for i, component in enumerate(prefixes):
            mine = row[i * len(FIGURES) : (i + 1) * len(FIGURES)]
            figures = dict(zip(FIGURES, mine, strict=True))
            if component is None:
                failed = int(row.failed or 0)
                found.append(Sums(row.grp, row.runs, failed, figures, *_read_parts(row)))
            elif any(value is not None for value in mine):
                own_group = component if choice.by == "component" else row.grp
                found.append(Sums(own_group, 0, 0, figures, *_read_parts(row)))
    return found


def _read_parts(row: Any) -> tuple[int, int, int | None]:
    """Return the week and the parts of a group."""
    week, part = int(getattr(row, "week", None) or 0), int(getattr(row, "part", None) or 0)
    above = getattr(row, "above", None)
    return week, part, None if above is None else int(above)


def _add_nodes(run_uuid: Any, key: str, step: Any, value: Any) -> Any:
    """Return the latest value of a metric of nodes, summed up over the nodes of its run.

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
        .where(one.run_uuid == run_uuid, one.key == key, *hold_figures(one))
        .where(~exists().where(*same, *hold_figures(newer), is_later))
        .scalar_subquery()
    )
    return case((step == 0, value), (step > 0, whole))


def hold_figures(row: Any) -> tuple[Any, ...]:
    """Return the conditions that the rows of a metric hold numbers, as `is_figure` does."""
    return row.is_nan.is_(False), row.value < BEYOND_FIGURES, row.value > -BEYOND_FIGURES


def list_further_components(session: Any) -> list[str]:
    """Return the names of all components that were not the first to report to their run."""
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import select

    tag = models.SqlTag
    lists = session.execute(select(tag.value).where(tag.key == f"{TAG}components").distinct())
    return sorted({name for (text,) in lists for name in _parse_names(text)})


def _has_nested(session: Any) -> bool:
    """Return whether the figures of any run are contained in those of another one."""
    from mlflow.store.tracking.dbmodels.models import SqlTag
    from sqlalchemy import select

    statement = select(SqlTag.run_uuid).where(SqlTag.key == MEASURED_TAG).limit(1)
    return session.execute(statement).first() is not None


def _leave_out(chosen: Any, figure: Any, choice: Choice) -> Any:
    """Return a figure that is NULL where that of another chosen run contains it.

    If moments divide the groups, whether that run is chosen too depends on the part: `above` is
    a group then, and every figure stays.

    Args:
        chosen: The columns of `choose_runs`.
        figure: The figure.
        choice: The runs.
    """
    from sqlalchemy import case

    if not choice.nested or choice.edges_ms:
        return figure
    return case((chosen["above"].is_(None), figure))


def _parse_names(text: str) -> list[str]:
    """Return the components in a tag; none if it is damaged."""
    try:
        found = from_json(text)
    except ValueError:
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _count_further(session: Any, choice: Choice) -> list[Sums]:
    """Return how many runs each further component reported to."""
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import and_, func, select

    listed = models.SqlTag
    chosen = choose_runs(choice, with_further=True)[0].subquery()
    has_list = and_(listed.run_uuid == chosen.c.run_uuid, listed.key == f"{TAG}components")
    failed = func.sum(chosen.c.broken).label("failed")
    times = list_groups(chosen, choice)[1:]
    statement = select(listed.value, *times, func.count().label("runs"), failed)
    statement = statement.join(chosen, has_list).group_by(listed.value, *times)
    return [
        Sums(name, row.runs, int(row.failed or 0), dict.fromkeys(FIGURES), *_read_parts(row))
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
def _allow_memory(session: Any, sessions: int = 1) -> Iterator[None]:
    """Let the database keep a large store's rows in memory while the sums are made.

    SQLite's own limit is 2 MB of pages, PostgreSQL's 4 MB for a hash table. SQLite's pages share
    256 MB if several sessions read at the same time.
    """
    from sqlalchemy import text

    kind = session.get_bind().dialect.name
    if kind == "postgresql":
        # Until the transaction ends. To compile the statement takes longer than to run it.
        session.execute(text("SET LOCAL work_mem = '64MB'"))
        off = "SELECT set_config(name, 'off', true) FROM pg_settings WHERE name = 'jit'"
        session.execute(text(off))
    before = session.execute(text("PRAGMA cache_size")).scalar() if kind == "sqlite" else None
    if before is not None:
        session.execute(text(f"PRAGMA cache_size = {-262_144 // sessions}"))
    try:
        yield
    finally:
        if before is not None:
            session.execute(text(f"PRAGMA cache_size = {int(before)}"))
