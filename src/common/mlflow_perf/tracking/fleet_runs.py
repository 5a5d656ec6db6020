"""The runs of a SQL store that are summed up, as a statement: their groups, and which count."""

from __future__ import annotations

from typing import Any

from mlflow_perf.model.document import BROKEN, SKIPPED
from mlflow_perf.tracking.fleet_sums import MONDAY_MS, USER_TAG, WEEK_MS, Choice
from mlflow_perf.tracking.perf_run import MEASURED_TAG, PARENT_TAG, STATUS_TAG, STEPS_TAG, TAG


def choose_runs(choice: Choice, *, with_further: bool = False) -> tuple[Any, Any]:
    """Return a selection of the runs with id, group and whether they failed; and their table.

    If the choice is nested, the column `above` is the part of the chosen run whose figures contain
    the run's; NULL for a run whose figures count.

    Args:
        choice: The runs.
        with_further: Whether only runs with several components are meant.
    """
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import and_, case, func, select
    from sqlalchemy.orm import aliased

    run = models.SqlRun

    def join_tag(key: str) -> tuple[Any, Any]:
        own = aliased(models.SqlTag)
        return own, and_(own.run_uuid == run.run_uuid, own.key == key)

    component, has_component = join_tag(f"{TAG}component")
    status, has_status = join_tag(STATUS_TAG)
    user, has_user = join_tag(USER_TAG)
    parent, has_parent = join_tag(PARENT_TAG)
    parent_run = aliased(run)
    joins = [(component, has_component, True), (status, has_status, False)]
    if choice.by == "user":
        joins.append((user, has_user, False))
    if choice.by == "workflow":
        joins.append((parent, has_parent, False))
        is_parent = counts_steps_of(parent_run, run) & (parent_run.run_uuid == parent.value)
        # MLflow's permissions are those of experiments: the parent's name is shown, too.
        is_parent &= parent_run.experiment_id.in_([int(e) for e in choice.experiments])
        joins.append((parent_run, is_parent, False))
    week = (run.start_time - MONDAY_MS) // WEEK_MS
    group = {
        "experiment": run.experiment_id,
        "user": func.coalesce(user.value, run.user_id),
        "component": component.value,
        "workflow": func.coalesce(parent_run.name, parent.value),
        "week": week,
    }[choice.by]
    broken = case((is_broken(run, status), 1), else_=0)
    if with_further:
        joins.append((*join_tag(f"{TAG}components"), True))
    chosen = select(run.run_uuid, group.label("grp"), broken.label("broken")).select_from(run)
    if choice.edges_ms:
        chosen = chosen.add_columns(week.label("week"), _find_part(choice, run).label("part"))
    if choice.nested:
        measured, is_measured = join_tag(MEASURED_TAG)
        above, reported = aliased(run), aliased(models.SqlTag)
        is_above = and_(above.run_uuid == measured.value, *are_chosen(choice, above))
        has_figures = and_(reported.run_uuid == above.run_uuid, reported.key == f"{TAG}component")
        joins += [(measured, is_measured, False), (above, is_above, False)]
        joins.append((reported, has_figures, False))
        part = case((reported.run_uuid != run.run_uuid, _find_part(choice, above)))
        chosen = chosen.add_columns(part.label("above"))
    for table, condition, needed in joins:
        chosen = chosen.join(table, condition, isouter=not needed)
    return chosen.where(*are_chosen(choice, run)), run


def is_broken(run: Any, status: Any) -> Any:
    """Return the condition that a run failed, as `PerfRun` finds its status.

    Args:
        run: The table of runs.
        status: The table of tags, joined by `STATUS_TAG`; NULL for runs without.
    """
    from sqlalchemy import and_, func, or_

    has_run = func.coalesce(status.value, "") != SKIPPED
    return or_(and_(run.status.in_(BROKEN), has_run), status.value.in_(BROKEN))


def _find_part(choice: Choice, run: Any) -> Any:
    """Return how many of the moments that divide the groups came before a run started."""
    from sqlalchemy import case, literal

    return sum((case((run.start_time >= e, 1), else_=0) for e in choice.edges_ms), literal(0))


def are_chosen(choice: Choice, run: Any) -> list[Any]:
    """Return the conditions that runs are active, in the experiments and within the time."""
    experiments = [int(experiment) for experiment in choice.experiments]
    conditions = [run.lifecycle_stage == "active", run.experiment_id.in_(experiments)]
    return [*conditions, *bound_time(choice, run)]


def counts_steps_of(parent: Any, child: Any) -> Any:
    """Return the condition that a run may have steps in the experiment of another run.

    The experiment is its own, or one that its tags name (`STEPS_TAG`).

    Args:
        parent: The columns of the workflow's run.
        child: The columns of the step's run.
    """
    from mlflow.store.tracking.dbmodels.models import SqlTag
    from sqlalchemy import String, cast, literal, or_, select
    from sqlalchemy.orm import aliased

    named, home = aliased(SqlTag), cast(child.experiment_id, String)
    is_named = (named.run_uuid == parent.run_uuid) & (named.key == literal(STEPS_TAG) + home)
    tagged = select(named.key).where(is_named).correlate_except(named).exists()
    return or_(parent.experiment_id == child.experiment_id, tagged)


def list_groups(chosen: Any, choice: Choice) -> list[Any]:
    """Return the columns of `choose_runs` by which its runs are grouped."""
    names = ["grp", "week", "part"] if choice.edges_ms else ["grp"]
    names += ["above"] if choice.edges_ms and choice.nested else []
    return [chosen.c[name] for name in names]


def bound_time(choice: Choice, run: Any) -> list[Any]:
    """Return the conditions on when a run started."""
    conditions = []
    if choice.since_ms is not None:
        conditions.append(run.start_time >= choice.since_ms)
    if choice.until_ms is not None:
        conditions.append(run.start_time < choice.until_ms)
    return conditions
