"""Other systems' workflows as runs of MLflow."""

from __future__ import annotations

import pytest
from mlflow import MlflowClient

from mlflow_perf.histories import log_workflow
from mlflow_perf.histories.tasks import Task, Workflow
from mlflow_perf.publish.workflow_writer import Place, Tracking


@pytest.mark.parametrize(
    ("found", "whole"),
    [
        (["FINISHED", "KILLED"], "KILLED"),
        (["KILLED", "FAILED", "FINISHED"], "FAILED"),
        (["FINISHED"], "FINISHED"),
    ],
)
def test_a_workflow_ends_as_the_worst_of_its_tasks(
    store: str, found: list[str], whole: str
) -> None:
    """A task that fails has the others killed: FAILED counts, as in every report."""
    tasks = tuple(Task(str(i), "fit", "fit", s, 1.0, started=9.0) for i, s in enumerate(found))
    done = log_workflow(Workflow("nextflow", "flow", tasks), Tracking(Place(store)))
    assert MlflowClient(store).get_run(done.run_id).info.status == whole


def test_a_workflow_whose_last_tasks_never_began_is_no_success(store: str) -> None:
    """The trace of an interrupted execution names them."""
    flow = Workflow(
        "nextflow",
        "flow",
        (Task("1", "fit", "fit", "FINISHED", 1.0, started=9.0),),
        left_out=1,
        broken=frozenset({"KILLED"}),
    )
    done = log_workflow(flow, Tracking(Place(store)))
    assert MlflowClient(store).get_run(done.run_id).info.status == "KILLED"
