"""Log other systems' workflows to MLflow: a parent run each, and a run per task."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlflow_perf.core.own_cost import as_own
from mlflow_perf.histories.tasks import Task, Workflow
from mlflow_perf.model.document import BROKEN, worst_status
from mlflow_perf.model.metrics import RUN_METRICS
from mlflow_perf.publish.workflow_writer import Tracking
from mlflow_perf.tracking.attempts import leave_out_retried
from mlflow_perf.tracking.batches import clean_text
from mlflow_perf.tracking.bulk_runs import FinishedRun, write_runs
from mlflow_perf.tracking.client import end_run, open_client
from mlflow_perf.tracking.paging import iterate_pages
from mlflow_perf.tracking.perf_run import (
    IMPORTED_TAG,
    PARENT_TAG,
    PIPELINE_TAG,
    SUBMITTED_TAG,
    TAG,
    PerfRun,
)

if TYPE_CHECKING:
    from mlflow.entities import Run

_KEY = f"{TAG}imported_key"


@dataclass(frozen=True)
class ImportedWorkflow:
    """What an import did.

    Attributes:
        run_id: The parent run.
        experiment: Name of the experiment.
        workflow: Name of the workflow.
        source: `nextflow`, `snakemake` or `sacct`.
        tasks: Tasks that were written now.
        known: Tasks that had been imported before.
        left_out: Tasks that did not run, or still did.
    """

    run_id: str
    experiment: str
    workflow: str
    source: str
    tasks: int
    known: int
    left_out: int


@as_own()  # no report of what this process does goes into such a run
def log_workflow(
    workflow: Workflow,
    tracking: Tracking,
    *,
    experiment: str | None = None,
    watch: Callable[[int, int], object] = lambda _done, _count: None,
) -> ImportedWorkflow:
    """Log a workflow's tasks as runs below a parent run; tasks that are there are left alone.

    Args:
        workflow: The workflow.
        tracking: Where to log.
        experiment: Name of the experiment; by default the workflow's.
        watch: Called with the number of tasks that are written, and of all.

    Raises:
        SettingError: The tracking server cannot be reached or refuses.
    """
    name = experiment or workflow.name
    experiment_id = tracking.experiment(name)
    client = open_client(tracking.place.uri)
    query = f"tags.`{IMPORTED_TAG}` = '{workflow.source}'"
    before = list(iterate_pages(client.search_runs, [experiment_id], query))
    known = {run.data.tags.get(_KEY): run for run in before}
    keys = {
        hashlib.sha256(task.key.encode("utf-8", "replace")).hexdigest()[:32]: task
        for task in workflow.tasks
    }
    new = {key: task for key, task in keys.items() if key not in known}
    # A trace may have grown since its first import: its new tasks go below the same parent.
    parents = (known[key].data.tags.get(PARENT_TAG) for key in keys if key in known)
    parent = next(filter(None, parents), None)
    # Where the source has no times, all began together, and the longest has ended now.
    latest = time.time() - max(task.duration_sec for task in workflow.tasks)
    first = min((t.started for t in workflow.tasks if t.started is not None), default=latest)
    runs = {key: _make_run(task, first, {_KEY: key}) for key, task in new.items()}
    siblings = [run for run in before if parent and run.data.tags.get(PARENT_TAG) == parent]
    whole = _describe_whole([*map(_read_sibling, siblings), *runs.values()], workflow.broken)
    if parent is None:
        tags = {
            IMPORTED_TAG: f"{workflow.source} workflow",
            PIPELINE_TAG: workflow.name,
            "mlflow.runName": clean_text(workflow.name, 250),
        }
        start_ms = int(1000 * whole.started)
        parent = client.create_run(experiment_id, start_time=start_ms, tags=tags).info.run_id
    shared = {PARENT_TAG: parent, IMPORTED_TAG: workflow.source}
    write_runs(
        client,
        experiment_id,
        [replace(run, tags={**run.tags, **shared}) for run in runs.values()],
        watch=lambda done: watch(done, len(runs)),
    )
    if new:
        tracking.metrics(parent, {"duration_sec": max(0.0, whole.ended - whole.started)})
        end_run(client, parent, whole.status, ended=whole.ended)
    return ImportedWorkflow(
        parent, name, workflow.name, workflow.source, len(new), len(keys) - len(new),
        workflow.left_out,
    )  # fmt: skip


def _read_sibling(run: Run) -> FinishedRun:
    """Return the times and the status of a task that was imported before."""
    started = (run.info.start_time or 0) / 1000.0
    ended = (run.info.end_time or run.info.start_time or 0) / 1000.0
    return FinishedRun(run.info.run_name, run.info.status, started, ended, tags=run.data.tags)


def _describe_whole(runs: Sequence[FinishedRun], broken: frozenset[str]) -> FinishedRun:
    """Return the times and the status of a workflow.

    Args:
        runs: All its tasks that ran.
        broken: The statuses of those that should have run.
    """
    # As for a pipeline that runs here, the wait for the first start is part of the whole.
    waits = [one for run in runs if (one := PerfRun("", tags=run.tags).submitted) is not None]
    started = min([*waits, *(run.started for run in runs)])
    statuses = broken | {run.status for run in leave_out_retried(runs, _name)}
    status = worst_status(statuses.intersection(BROKEN)) or "FINISHED"
    return FinishedRun("", status, started, max(run.ended for run in runs))


def _name(run: FinishedRun) -> tuple[str, str | None]:
    return clean_text(run.name, 250), run.tags.get(f"{TAG}cluster")


def _make_run(task: Task, first: float, tags: dict[str, str]) -> FinishedRun:
    started = first if task.started is None else task.started
    nodes = [task.metrics] * task.nodes if task.nodes > 1 else []
    of_run = {m.key: value for m in RUN_METRICS if (value := m.compute(nodes)) is not None}
    of_run.pop("run_imbalance_pct", None)  # the source has the mean of the nodes only
    if task.submitted is not None:
        tags = {**tags, SUBMITTED_TAG: f"{task.submitted:.3f}"}
    if task.tasks_per_node > 1:
        tags = {**tags, f"{TAG}tasks_per_node": str(task.tasks_per_node)}
    return FinishedRun(
        task.name,
        task.status,
        started,
        started + task.duration_sec,
        metrics=task.metrics | of_run,
        params={name: f"{value:.10g}" for name, value in task.params.items()},
        tags={**task.tags, **tags, f"{TAG}component": task.component},
    )
