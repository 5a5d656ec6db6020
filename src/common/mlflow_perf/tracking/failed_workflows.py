"""The workflows that failed though none of their steps did, by SQL and by MLflow's search.

The run of a group or of a pipeline has no performance data of its own, so that the sums over runs
leave it out. If a step of it failed, that one counts; if it failed outside of its steps, it counts
itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mlflow_perf.model.document import BROKEN
from mlflow_perf.tracking.fleet_runs import are_chosen, counts_steps_of, is_broken
from mlflow_perf.tracking.fleet_sums import FIGURES, MONDAY_MS, USER_TAG, WEEK_MS, Choice, Sums
from mlflow_perf.tracking.perf_run import (
    GROUP_TAG,
    PARENT_TAG,
    PIPELINE_TAG,
    STATUS_TAG,
    TAG,
    PerfRun,
)
from mlflow_perf.tracking.search import iterate_runs, quote_literal

if TYPE_CHECKING:
    from mlflow import MlflowClient

_PARENT_TAGS = (GROUP_TAG, PIPELINE_TAG)
_COMPONENT_TAG = f"{TAG}component"
_COUNTED = {_COMPONENT_TAG, *_PARENT_TAGS}


@dataclass(frozen=True)
class FailedWorkflow:
    """The run of a workflow that failed outside of its steps.

    Attributes:
        name: Its name.
        experiment_id: Its experiment.
        user: Who ran it; None if unknown.
        start_ms: When it started, Unix time in milliseconds.
    """

    name: str
    experiment_id: int
    user: str | None
    start_ms: int


def list_failed(found: Iterable[FailedWorkflow], choice: Choice) -> Iterator[Sums]:
    """Yield each workflow as one run that failed, without figures: those are its steps'."""
    for one in found:
        week = (one.start_ms - MONDAY_MS) // WEEK_MS
        group: dict[str, Any] = {
            "experiment": one.experiment_id,
            "user": one.user,
            "component": None,
            "workflow": one.name,
            "week": week,
        }
        sums = Sums(group[choice.by], 1, 1, dict.fromkeys(FIGURES))
        if choice.edges_ms:
            part = sum(one.start_ms >= edge for edge in choice.edges_ms)
            sums = replace(sums, week=week, part=part)
        yield sums


def query_failed(session: Any, choice: Choice) -> list[FailedWorkflow]:
    """Return the workflows of a choice that failed outside of their steps, from MLflow's tables."""
    from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag
    from sqlalchemy import func, select
    from sqlalchemy.orm import aliased

    def select_broken(run: Any, *columns: Any) -> Any:
        status = aliased(SqlTag)
        has_status = (status.run_uuid == run.run_uuid) & (status.key == STATUS_TAG)
        chosen = select(*columns).select_from(run).outerjoin(status, has_status)
        return chosen.where(is_broken(run, status))

    user, component, kind = aliased(SqlTag), aliased(SqlTag), aliased(SqlTag)
    named = func.coalesce(user.value, SqlRun.user_id).label("user")
    columns = SqlRun.run_uuid, SqlRun.name, SqlRun.experiment_id, SqlRun.start_time, named
    failed = select_broken(SqlRun, *columns)
    for tag, key in ((user, USER_TAG), (component, _COMPONENT_TAG)):
        failed = failed.outerjoin(tag, (tag.run_uuid == SqlRun.run_uuid) & (tag.key == key))
    parents = select(kind.run_uuid).where(kind.key.in_(_PARENT_TAGS))
    failed = failed.where(SqlRun.run_uuid.in_(parents), component.value.is_(None))
    failed = failed.where(*are_chosen(choice, SqlRun))
    rows = session.execute(failed).all()
    if not rows:
        return []
    step, above, parent, kind = aliased(SqlRun), aliased(SqlTag), aliased(SqlRun), aliased(SqlTag)
    counts = kind.key.in_(_COUNTED)
    failed_step = (
        select_broken(step, above.value)
        .join(above, (above.run_uuid == step.run_uuid) & (above.key == PARENT_TAG))
        .join(parent, (parent.run_uuid == above.value) & counts_steps_of(parent, step))
        .join(kind, (kind.run_uuid == step.run_uuid) & counts)
        .where(parent.run_uuid.in_(failed.with_only_columns(SqlRun.run_uuid)))
        .where(*are_chosen(replace(choice, since_ms=None, until_ms=None), step))
    )
    explained = {run_id for (run_id,) in session.execute(failed_step)}
    return [
        FailedWorkflow(row.name or row.run_uuid, row.experiment_id, row.user, row.start_time or 0)
        for row in rows
        if row.run_uuid not in explained
    ]


def search_failed(
    client: MlflowClient,
    choice: Choice,
    conditions: Iterable[str],
    failed_steps: Collection[tuple[str, str]],
) -> Iterator[FailedWorkflow]:
    """Yield the same from MLflow's search, for stores behind a server.

    Args:
        client: A client of the store.
        choice: The runs.
        conditions: When they started, in MLflow's search language.
        failed_steps: Parent and experiment of failed runs that are known already.
    """
    for tag in _PARENT_TAGS:
        query = " and ".join([f"tags.`{tag}` LIKE '%'", *conditions])
        for run in iterate_runs(client, choice.experiments, query):
            known = PerfRun.from_mlflow(run)
            if known.component is not None or known.status not in BROKEN:
                continue
            places = [one for one in known.step_experiments if one in choice.experiments]
            run_id = str(known.run_id)
            if any((run_id, place) in failed_steps for place in places):
                continue
            below = f"tags.`{PARENT_TAG}` = {quote_literal(run_id)}"
            steps = map(PerfRun.from_mlflow, iterate_runs(client, places, below))
            if not any(step.status in BROKEN and _COUNTED & step.tags.keys() for step in steps):
                user = run.data.tags.get(USER_TAG) or run.info.user_id
                name, place = run.info.run_name or run_id, int(run.info.experiment_id)
                yield FailedWorkflow(name, place, user, run.info.start_time or 0)
