"""Reads the hours and costs of all runs of a store, summed up by group.

MLflow's own search builds an object for each run, 4.8 s for 1,000 runs. Where the store is a SQL
database that this process can reach, the sums are made there, by bound statements that only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.tracking.load import experiment_ids, fetch_run, make_client
from mlflow_perf.tracking.perf_run import PARENT_TAG, TAG, PerfRun
from mlflow_perf.tracking.search import iterate_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

FIGURES = ("cpu_hours", "unused_cpu_hours", "gpu_hours", "unused_gpu_hours", "cost", "unused_cost")
"""What is summed up: the metric `run_<name>` of each run, `node_<name>` of a run without it."""

GROUPS = ("experiment", "user", "component", "workflow", "week")
"""What runs are summed up by."""

WEEK_MS = 7 * 86_400_000
MONDAY_MS = 4 * 86_400_000
"""The first Monday of Unix time: 5 January 1970."""

_FAILED = ("FAILED", "KILLED")
_USER = "mlflow.user"
_NAMED_MAX = 200


@dataclass(frozen=True)
class Sums:
    """The sums of one group.

    Attributes:
        group: The id of an experiment, a user, a component, the name of the parent run, or the
            number of the week since the first Monday of 1970; None for runs without one.
        runs: How many runs.
        failed: How many of them failed or were killed.
        figures: Each of `FIGURES`; None where no run has it.
    """

    group: Any
    runs: int
    failed: int
    figures: Mapping[str, float | None]

    def add(self, other: Sums) -> Sums:
        """Return the sums of both, as one group."""
        figures = {}
        for name in FIGURES:
            known = [s.figures[name] or 0.0 for s in (self, other) if s.figures[name] is not None]
            figures[name] = sum(known) if known else None
        return Sums(self.group, self.runs + other.runs, self.failed + other.failed, figures)


def sum_runs(by: str, since_ms: int | None = None, until_ms: int | None = None) -> list[Sums]:
    """Return the sums of all active runs with performance data, by group, in any order.

    Args:
        by: One of `GROUPS`.
        since_ms: Only runs that started then or later, Unix time in milliseconds.
        until_ms: Only runs that started before.

    Raises:
        RunNotFoundError: When the store does not answer.
    """
    client = make_client()
    store = find_sql_store(client)
    if store is not None:
        return query_sums(store, experiment_ids(client), by, since_ms, until_ms)
    return _sum_searched(client, by, since_ms, until_ms)


def find_sql_store(client: MlflowClient) -> Any:
    """Return the client's store if it is a SQL database with the tables that we know, else None."""
    try:
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        store = client._tracking_client.store  # noqa: SLF001 - MLflow has no public way to it
    except (ImportError, AttributeError):
        return None
    return store if isinstance(store, SqlAlchemyStore) else None


def query_sums(
    store: Any, experiments: Sequence[str], by: str, since_ms: int | None, until_ms: int | None
) -> list[Sums]:
    """Return the sums over the runs of some experiments, made by the database.

    Args:
        store: MLflow's SQL store.
        experiments: Ids of the experiments that may be read.
        by: As in `sum_runs`.
        since_ms: As there.
        until_ms: As there.
    """
    with store.ManagedSessionMaker() as session, _use_large_cache(session):
        statement = build_statement(
            _list_logged(session), experiments, by, since_ms, until_ms,
            is_sqlite=session.get_bind().dialect.name == "sqlite",
        )  # fmt: skip
        return [
            Sums(
                row.grp,
                row.runs,
                int(row.failed or 0),
                {name: getattr(row, name, None) for name in FIGURES},
            )
            for row in session.execute(statement)
        ]


def build_statement(
    logged: Mapping[str, Sequence[str]],
    experiments: Sequence[str],
    by: str,
    since_ms: int | None,
    until_ms: int | None,
    *,
    is_sqlite: bool,
) -> Any:
    """Return the statement that sums up runs by group.

    SQLite looks each value up by its key; other databases pivot the values of all runs once and
    join them by hash, which a lookup per run would be slower than.

    Args:
        logged: Each figure that some run has → the metrics that hold it, the preferred one first.
        experiments: As in `query_sums`.
        by: As there.
        since_ms: As there.
        until_ms: As there.
        is_sqlite: Whether the database is SQLite.
    """
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import Float, and_, case, cast, func, or_, select
    from sqlalchemy.orm import aliased

    run = models.SqlRun

    def join_tag(key: str) -> tuple[Any, Any]:
        own = aliased(models.SqlTag)
        return own, and_(own.run_uuid == run.run_uuid, own.key == key)

    component, has_component = join_tag(f"{TAG}component")
    status, has_status = join_tag(f"{TAG}status")
    user, has_user = join_tag(_USER)
    parent, has_parent = join_tag(PARENT_TAG)
    parent_run = aliased(run)
    group = {
        "experiment": run.experiment_id,
        "user": func.coalesce(user.value, run.user_id),
        "component": component.value,
        "workflow": func.coalesce(parent_run.name, parent.value),
        "week": (run.start_time - MONDAY_MS) // WEEK_MS,
    }[by]
    keys = [key for names in logged.values() for key in names]
    values, pivot = _select_values(keys, is_sqlite=is_sqlite)
    sums = [
        func.sum(cast(func.coalesce(*(values[key] for key in names), None), Float)).label(name)
        for name, names in logged.items()
    ]
    broken = case((or_(run.status.in_(_FAILED), status.value.in_(_FAILED)), 1), else_=0)
    statement = select(
        group.label("grp"), func.count().label("runs"), func.sum(broken).label("failed"), *sums
    )
    statement = statement.select_from(run).join(component, has_component)
    statement = statement.outerjoin(status, has_status)
    if pivot is not None:
        statement = statement.outerjoin(pivot, pivot.c.run_uuid == run.run_uuid)
    if by == "user":
        statement = statement.outerjoin(user, has_user)
    if by == "workflow":
        statement = statement.outerjoin(parent, has_parent)
        statement = statement.outerjoin(parent_run, parent_run.run_uuid == parent.value)
    statement = statement.where(
        run.lifecycle_stage == "active", run.experiment_id.in_([int(e) for e in experiments])
    )
    if since_ms is not None:
        statement = statement.where(run.start_time >= since_ms)
    if until_ms is not None:
        statement = statement.where(run.start_time < until_ms)
    return statement.group_by(group)


def _select_values(keys: Sequence[str], *, is_sqlite: bool) -> tuple[dict[str, Any], Any]:
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
            values[key] = select(own.value).where(*mine).scalar_subquery()
        return values, None
    columns = [
        func.max(case((metric.key == key, metric.value))).label(f"v{i}")
        for i, key in enumerate(keys)
    ]
    found = select(metric.run_uuid, *columns)
    found = found.where(metric.key.in_(keys), metric.is_nan.is_(False))
    pivot = found.group_by(metric.run_uuid).subquery()
    return {key: pivot.c[f"v{i}"] for i, key in enumerate(keys)}, pivot


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


def _sum_searched(
    client: MlflowClient, by: str, since_ms: int | None, until_ms: int | None
) -> list[Sums]:
    """Return the same sums from MLflow's search, for stores behind a server."""
    conditions = [f"tags.`{TAG}component` LIKE '%'"]
    conditions += [f"attributes.start_time >= {since_ms}"] if since_ms is not None else []
    conditions += [f"attributes.start_time < {until_ms}"] if until_ms is not None else []
    read_group: dict[str, Callable[[Run], Any]] = {
        "experiment": lambda run: int(run.info.experiment_id),
        "user": lambda run: run.data.tags.get(_USER) or run.info.user_id,
        "component": lambda run: run.data.tags.get(f"{TAG}component"),
        "workflow": lambda run: run.data.tags.get(PARENT_TAG),
        "week": lambda run: ((run.info.start_time or 0) - MONDAY_MS) // WEEK_MS,
    }
    sums: dict[Any, list[Any]] = {}
    for run in iterate_runs(client, experiment_ids(client), " and ".join(conditions)):
        known = PerfRun.from_mlflow(run)
        row = sums.setdefault(read_group[by](run), [0, 0, {}])
        row[0] += 1
        row[1] += known.status in _FAILED
        for name in FIGURES:
            value = known.metrics.get(f"run_{name}", known.metrics.get(f"node_{name}"))
            if value is not None:
                row[2][name] = row[2].get(name, 0.0) + value
    names: dict[Any, Any] = {group: group for group in sums}
    if by == "workflow":
        for group in list(filter(None, sums))[:_NAMED_MAX]:
            with suppress(RunNotFoundError):
                names[group] = fetch_run(client, group).info.run_name or group
    merged: dict[Any, Sums] = {}
    for group, (runs, failed, found) in sums.items():
        own = Sums(names[group], runs, failed, {name: found.get(name) for name in FIGURES})
        merged[own.group] = merged[own.group].add(own) if own.group in merged else own
    return list(merged.values())
