"""Log the report of a whole workflow to its parent run.

The runner ends with it; the component `perf_report` does the same from inside a pipeline.
"""

from __future__ import annotations

import json

from mlflow_perf.analysis.workflow import Workflow, build_workflow
from mlflow_perf.core.held_name import holding
from mlflow_perf.model.document import PerfDocument
from mlflow_perf.model.metrics import RUN_METRICS
from mlflow_perf.publish.note import REPORT_FILE, write_workflow_note
from mlflow_perf.publish.workflow_writer import Tracking
from mlflow_perf.reports import html
from mlflow_perf.tracking.perf_run import COUNT_TAG, PerfRun
from mlflow_perf.tracking.search import get_run

WORKFLOW_FILE = "perf/workflow.json"
"""Where a parent run has its workflow as data."""

_ALONE_SEC = 10.0


def log_workflow(run_id: str, tracking: Tracking) -> tuple[Workflow | None, str]:
    """Log `perf/workflow.json`, `perf_report.html` and the description of a parent run.

    Args:
        run_id: The parent run.
        tracking: Where the run is; MLflow's own tracking URI must be the same.

    Returns:
        The workflow, or None if the run has no children; and the HTML page.
    """
    # A group's end and a step that ends after it would replace each other's report.
    with holding([f"{run_id} workflow"], timeout_sec=_ALONE_SEC):
        workflow = build_workflow(run := get_run(run_id))
        return (None, "") if workflow is None else (workflow, _log_report(workflow, run, tracking))


def _log_report(workflow: Workflow, run: PerfRun, tracking: Tracking) -> str:
    """Log the report of a workflow to its run, and return its page."""
    run_id = str(run.run_id)
    flow = workflow.as_dict()
    page = html.render(PerfDocument(), title=workflow.name, workflow=flow, run=run)
    tracking.text(run_id, json.dumps(flow, allow_nan=False), WORKFLOW_FILE)
    tracking.text(run_id, page, REPORT_FILE)
    tracking.note(run_id, lambda links: write_workflow_note(flow, links))
    totals = {f"run_{key}": value for key, value in workflow.totals.items()}
    known = {metric.key for metric in RUN_METRICS}
    # The runner's own clock counts its preparations, too: the run has one duration everywhere.
    figures = {"duration_sec": workflow.duration_sec}
    figures |= {key: value for key, value in totals.items() if key in known}
    tracking.metrics(run_id, figures)
    tracking.tag(run_id, COUNT_TAG, str(len({step.run_id for step in workflow.steps})))
    return page
