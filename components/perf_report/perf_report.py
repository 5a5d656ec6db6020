"""Write the report of the workflow that this step belongs to, to its parent run and to a folder."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path

from arguments import apply_common, parser

import mlflow_perf
from mlflow_perf.publish.workflow_report import log_workflow
from mlflow_perf.publish.workflow_writer import Place, Tracking
from mlflow_perf.tracking.search import get_run


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = parser(__doc__)
    made.add_argument("--after", action="append", default=[], help="only makes the step wait")
    made.add_argument("--report", type=Path, required=True)
    return made


def find_parent(run_id: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the pipeline's run: the parent in MLflow, else Azure ML's root run, else this run."""
    return get_run(run_id).parent_id or environ.get("AZUREML_ROOT_RUN_ID") or run_id


def main() -> None:
    """Log the report and write it to a folder."""
    args = arguments().parse_args()
    with mlflow_perf.report("perf_report") as perf:
        apply_common(args, perf)
        if perf.run_id is None:
            raise SystemExit("There is no MLflow run, so there is no workflow to report on.")
        parent = find_parent(perf.run_id)
        tracking = Tracking(Place(os.environ.get("MLFLOW_TRACKING_URI", "")))
        with perf.time("log_workflow"):
            workflow, page = log_workflow(parent, tracking)
        if workflow is None:
            raise SystemExit(f"The run {parent} has no steps to report on.")
        args.report.mkdir(parents=True, exist_ok=True)
        (args.report / "perf_report.html").write_text(page, encoding="utf-8")
        data = json.dumps(workflow.as_dict(), allow_nan=False)
        (args.report / "workflow.json").write_text(data, encoding="utf-8")
        print(f"{len(workflow.steps)} steps, critical path: {' → '.join(workflow.critical_path)}")


if __name__ == "__main__":
    main()
