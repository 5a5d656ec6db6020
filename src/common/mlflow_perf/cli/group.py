"""`mlflow-perf group`: make one workflow of all runs that a command starts."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING

import click

from mlflow_perf.cli import _options
from mlflow_perf.cli._wrapped import leave, prepare_command
from mlflow_perf.core.format import format_count, join_some
from mlflow_perf.core.settings import Settings
from mlflow_perf.core.uris import first_line
from mlflow_perf.session.command import judge_end
from mlflow_perf.session.held_child import HeldChild
from mlflow_perf.session.outcome import Outcome
from mlflow_perf.session.run_finder import find_tracking_uri
from mlflow_perf.tracking.mlflow_call import MlflowCall
from mlflow_perf.tracking.run_handle import PARENT_VARIABLE

if TYPE_CHECKING:
    from mlflow_perf.analysis.workflow import Workflow

__all__ = ["command"]

_log = logging.getLogger("mlflow_perf.group")


@click.command("group", context_settings={"allow_interspersed_args": False})
@click.argument("name")
@click.argument("argv", metavar="-- CMD …", nargs=-1, required=True, type=click.UNPROCESSED)
def command(name: str, argv: tuple[str, ...]) -> None:
    """Run a command, and make one workflow of all runs that it reports.

    The command may be Make, Snakemake, Metaflow, a shell script or anything else that starts steps
    with `mlflow-perf run` or report(). Their runs become children of one run NAME, which gets the
    workflow's report: timeline, critical path, waiting times and unused resources. The
    command keeps its own output, input, signals and exit code.
    """
    argv = argv[1:] if argv[0] == "--" else argv
    if not argv:
        raise click.UsageError("A command is missing: mlflow-perf group NAME -- CMD …")
    if not name.strip():
        raise click.BadParameter("must be a text that is not empty", param_hint="NAME")
    prepare_command(argv)
    settings = Settings.load()
    run_id = _begin(name, settings.start_timeout)
    child = HeldChild(argv)
    child.release()
    code, ended_by = child.wait(lambda: None)
    end = judge_end(code, ended_by=ended_by, received=child.received, oom_kills=0)
    child.reap()
    with contextlib.suppress(KeyboardInterrupt):
        child.allow_interrupt()
        if run_id is not None:
            _finish(run_id, end, settings)
    leave(code)


def _begin(name: str, timeout_sec: float) -> str | None:
    """Start the parent run and name it to all that the command starts; None without a server."""
    uri = find_tracking_uri()

    for library in ("alembic", "mlflow.store"):
        logging.getLogger(library).setLevel(logging.ERROR)

    def start() -> tuple[str, str]:
        from mlflow_perf.tracking.client import create_run, find_current_experiment

        experiment_id = find_current_experiment(uri)
        parent = os.environ.get(PARENT_VARIABLE)
        tags = {"mlflow_perf.group": name, "mlflow.source.type": "LOCAL"}
        tags |= {"mlflow.parentRunId": parent} if parent else {}
        made = create_run(name, tracking_uri=uri, experiment_id=experiment_id, tags=tags)
        return str(made.info.run_id), experiment_id

    try:
        # A store of this machine may have to be made first.
        limit_sec = timeout_sec if uri.startswith("http") else max(timeout_sec, 60.0)
        run_id, experiment_id = MlflowCall(start, name="new-group").result(limit_sec)
    # The edge to MLflow: the command runs whatever the server does.
    except Exception as error:  # noqa: BLE001
        _log.warning("The command runs without a group: %s", first_line(error) or repr(error))
        return None
    os.environ["MLFLOW_TRACKING_URI"] = uri
    os.environ["MLFLOW_EXPERIMENT_ID"] = experiment_id
    os.environ[PARENT_VARIABLE] = run_id
    # A run that the command was to report to is not the run of each of its steps.
    os.environ.pop("MLFLOW_RUN_ID", None)
    return run_id


def describe(workflow: Workflow) -> str:
    """Return a workflow's closing line: number of steps, failed steps, and critical path."""
    count = format_count(len(workflow.steps), "step")
    failed = [step.name for step in workflow.steps if step.status in ("FAILED", "KILLED")]
    named = f"failed: {join_some(failed)}, " if failed else ""
    path = " → ".join(workflow.critical_path)
    return f"{count} in {workflow.duration_sec:.1f} s, {named}longest way: {path}"


def _finish(run_id: str, end: Outcome, settings: Settings) -> None:
    """End the parent run with the report of its workflow, in bounded time."""
    from mlflow_perf.pipelines.workflow_report import log_workflow
    from mlflow_perf.publish.workflow_writer import Place, Tracking

    _options.prepare()
    tracking = Tracking(Place(os.environ["MLFLOW_TRACKING_URI"]))

    def finish() -> str:
        tags = {"mlflow_perf.cause": end.cause} if end.cause else {}
        tracking.end(run_id, end.status, tags=tags)
        workflow, _ = log_workflow(run_id, tracking)
        if workflow is None:
            return "no step reported: start steps with `mlflow-perf run`, or use report() in them"
        return describe(workflow)

    try:
        said = MlflowCall(finish, name="end-group").result(settings.exit_timeout)
    # The edge to MLflow, as above: the command's own exit code is what counts.
    except Exception as error:  # noqa: BLE001
        _log.warning("The group's report could not be made: %s", first_line(error) or repr(error))
        return
    if not settings.quiet:
        click.echo(f"mlflow-perf: {said} | mlflow-perf report {run_id}", err=True)
