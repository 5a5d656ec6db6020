"""`mlflow-perf pipeline`: run an azure-ai-ml pipeline here, on a cluster or on Azure ML."""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mlflow_perf.errors import MlflowPerfError, StepFailedError

if TYPE_CHECKING:
    from mlflow_perf.pipelines.graph import Graph
    from mlflow_perf.pipelines.runner import Result
    from mlflow_perf.pipelines.step import Outcome
    from mlflow_perf.publish.workflow_writer import Tracking

__all__ = ["command"]

_log = logging.getLogger("mlflow_perf.pipelines")


@click.group()
def command() -> None:
    """Run pipelines of components, each step an MLflow run with its performance."""


@command.command()
@click.argument("file")
@click.option("--set", "settings", multiple=True, metavar="K=V", help="Value of an input.")
@click.option(
    "--on",
    default="threads",
    show_default=True,
    metavar="threads|htex|CONFIG.py|azureml",
    help="Where steps run: here, on a Parsl configuration, or on Azure ML.",
)
@click.option(
    "--to",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for an embedded MLflow store. Default: MLFLOW_TRACKING_URI, else ./demo.",
)
@click.option("--retries", type=click.IntRange(0), default=0, help="Repeats of a failed step.")
@click.option(
    "--monitor", is_flag=True, help="Record the tasks and import them as spans (spans.sqlite3)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the steps as JSON.")
@click.option("--no-wait", is_flag=True, help="On Azure ML: submit, and do not follow the job.")
def run(
    file: str,
    settings: tuple[str, ...],
    *,
    on: str,
    to: Path | None,
    retries: int,
    monitor: bool,
    as_json: bool,
    no_wait: bool,
) -> None:
    """Run the @dsl.pipeline that FILE defines (FILE:NAME picks one of several)."""
    from mlflow_perf.pipelines.loading import load_job, parse_settings

    _quiet_libraries()
    job, path = load_job(file, parse_settings(settings))
    if on == "azureml":
        _submit(job, wait=not no_wait)
        return
    asked = _Asked(on, to, retries, monitor=monitor, as_json=as_json)
    _run_here(job, path.resolve(), asked)


def _submit(job: Any, *, wait: bool) -> None:
    from mlflow_perf.pipelines import azure

    azure.submit(job, azure.workspace(), wait=wait, say=click.echo)


@dataclass(frozen=True)
class _Asked:
    """The options of a run on Parsl."""

    on: str
    to: Path | None
    retries: int
    monitor: bool
    as_json: bool


def _run_here(job: Any, path: Path, asked: _Asked) -> None:
    from mlflow_perf.pipelines.executors import Pool, load_config
    from mlflow_perf.pipelines.read_graph import read_graph
    from mlflow_perf.pipelines.runner import Runner
    from mlflow_perf.publish.workflow_writer import Tracking, place_for

    graph = read_graph(job, source=path)
    config = load_config(asked.on)
    place = place_for(asked.to)
    place.make_default()
    base = place.folder or Path("pipeline-runs")
    work = base / "work" / _folder_name(graph.name)
    tracking = Tracking(place)
    progress = _Progress(list(graph.steps))
    runner = Runner(graph, tracking, work, retries=asked.retries, watch=progress.tell)
    with _terminating_as_interrupt():
        result = runner.run(lambda: Pool(config, work / "parsl", monitor=asked.monitor))
    _log_whole(result, tracking)
    _report(graph, result, tracking, as_json=asked.as_json)
    if asked.monitor:
        _import_spans(work / "parsl", base / "spans.sqlite3")
    _leave(result)


def _import_spans(parsl: Path, db: Path) -> None:
    from mlflow_perf.pipelines.executors import MONITORING_DB
    from mlflow_perf.spans import import_sources

    try:
        found = import_sources([parsl / MONITORING_DB], db)
    # Of a pipeline that was stopped early there may be none: its own outcome is what is told.
    except (MlflowPerfError, OSError) as error:
        _log.warning("The tasks are not among the spans: %s", error)
        return
    click.echo(f"spans: {sum(f.spans for f in found)} in {os.path.relpath(db)}", err=True)


def _log_whole(result: Result, tracking: Tracking) -> None:
    from mlflow_perf.pipelines.workflow_report import log_workflow

    try:
        log_workflow(result.run_id, tracking)
    # The edge to MLflow: a report that cannot be logged costs neither the table nor the outcome.
    except Exception:  # noqa: BLE001 - see above
        _log.warning("The workflow's report could not be logged.", exc_info=True)


def _report(graph: Graph, result: Result, tracking: Tracking, *, as_json: bool) -> None:
    from mlflow_perf.pipelines.step_table import render, rows_of

    rows = rows_of(graph, result)
    link = tracking.place.link(result.run_id, result.experiment_id)
    if as_json:
        found = {
            "run_id": result.run_id,
            "status": result.status,
            "steps": [row.as_dict() for row in rows],
            "outputs": {name: str(path) for name, path in result.outputs.items()},
        }
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(f"\n{graph.title}: {result.status} in {result.duration_sec:.1f} s\n")
    click.echo(render(rows))
    for name, path in result.outputs.items():
        click.echo(f"output {name}: {path}")
    if tracking.place.folder:
        click.echo(f"to see it: {_server_line(tracking.place.folder)}")
        click.echo(f"then open: {link}")
    else:
        click.echo(f"run: {link}")


def _server_line(folder: Path) -> str:
    shown = os.path.relpath(folder)
    return (
        "mlflow server --workers 1 --app-name mlflow-perf "
        f"--backend-store-uri sqlite:///{shown}/mlflow.db --artifacts-destination {shown}/artifacts"
    )


def _leave(result: Result) -> None:
    """End with the status of the contract, after a line for each step that failed."""
    if result.status == "FINISHED":
        return
    if result.status == "KILLED":
        unfinished = [n for n, o in result.steps.items() if o.status != "FINISHED"]
        _fail(unfinished[0] if unfinished else "", "Stopped by an interrupt; all steps were ended.")
    failed = [o for o in result.steps.values() if o.status in ("FAILED", "KILLED")]
    lines = [_sentence(outcome) for outcome in failed]
    _fail(failed[0].name if failed else "", "\nmlflow-perf: ".join(lines))


def _sentence(outcome: Outcome) -> str:
    log = f" Its log: {outcome.log}" if outcome.log else ""
    return f"Step {outcome.name!r} failed: {outcome.message}.{log}"


def _fail(step: str, message: str) -> NoReturn:
    raise StepFailedError(step, message)


class _Progress:
    """Tells of steps as they begin and end; on a terminal only."""

    def __init__(self, names: list[str]) -> None:
        self._width = max(map(len, names), default=0)
        self._total = len(names)
        self._done = 0
        self._shown = sys.stderr.isatty()

    def tell(self, name: str, what: str, outcome: Outcome | None) -> None:
        if outcome is not None:
            self._done += 1
            what = f"{outcome.status.lower()} after {outcome.duration_sec:.1f} s"
        if self._shown:
            click.echo(f"[{self._done}/{self._total}] {name:<{self._width}}  {what}", err=True)


def _folder_name(pipeline: str) -> str:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    plain = "".join(c if c.isalnum() or c in "-_" else "-" for c in pipeline)
    return f"{plain}-{stamp}-{secrets.token_hex(2)}"


@contextmanager
def _terminating_as_interrupt() -> Iterator[None]:
    """Take a SIGTERM as the interrupt that it means, so that steps and runs are ended."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before: Callable[..., Any] | int | None = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _quiet_libraries() -> None:
    """Keep the chatter of MLflow's store and of azure-ai-ml out of the table."""
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    for name in ("alembic", "mlflow.store", "azure"):
        logging.getLogger(name).setLevel(logging.ERROR)
