"""`mlflow-perf pipeline`: run an azure-ai-ml pipeline here, on a cluster or on Azure ML."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlflow_perf.cli import _options, _tables
from mlflow_perf.core.format import format_count
from mlflow_perf.core.uris import is_http
from mlflow_perf.errors import (
    MlflowPerfError,
    PipelineError,
    PipelineStoppedError,
    StepFailedError,
)

if TYPE_CHECKING:
    from mlflow_perf.pipelines.environments import StepPython
    from mlflow_perf.pipelines.graph import Graph
    from mlflow_perf.pipelines.result import Result
    from mlflow_perf.pipelines.step_outcome import Outcome
    from mlflow_perf.pipelines.step_sizes import StepSize
    from mlflow_perf.pipelines.step_table import Row
    from mlflow_perf.publish.workflow_writer import Tracking

_HEADER = (
    "step", "status", "sec", "nodes", "measured", "{}", "unused", "peak MB", "read MB", "write MB"
)  # fmt: skip
_NAME_BYTES = 150
_SHORT_HOURS = 0.1  # CPU time below it is shown in seconds
_log = logging.getLogger("mlflow_perf.pipelines")


@click.group(cls=_options.SuggestingGroup)
def command() -> None:
    """Run pipelines of components; each step is an MLflow run with its performance."""


@command.command()
@click.argument("file")
@click.argument("arguments", metavar="[-- ARG …]", nargs=-1, type=click.UNPROCESSED)
@click.option("--set", "settings", multiple=True, metavar="K=V", help="Value of an input.")
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="azureml:NAME@VERSION=PATH",
    help="Local path that stands in for a data asset or a remote address.",
)
@click.option(
    "--environments",
    type=click.Choice(["own", "here"]),
    default="own",
    show_default=True,
    help="Make each component's environment, or use this Python for all.",
)
@click.option(
    "--python", "pythons", multiple=True, metavar="STEP=PATH", help="Interpreter of a step."
)
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
    "--size",
    metavar="learned|FILE",
    help="Memory and cores of each step: from its component's past, or from a YAML or JSON file. "
    "Only as many steps run side by side as fit; a step killed for lack of memory gets more.",
)
@click.option(
    "--memory",
    "budget_mb",
    type=click.FloatRange(64, 1e12),
    metavar="MB",
    help="With --size: memory for all steps on a machine together; default: 90% of it.",
)
@click.option(
    "--monitor", is_flag=True, help="Record the tasks and import them as spans (spans.sqlite3)."
)
@_options.as_json
@click.option("--no-wait", is_flag=True, help="On Azure ML: submit, and do not follow the job.")
def run(
    file: str,
    arguments: tuple[str, ...],
    settings: tuple[str, ...],
    maps: tuple[str, ...],
    *,
    environments: str,
    pythons: tuple[str, ...],
    on: str,
    to: Path | None,
    retries: int,
    size: str | None,
    budget_mb: float | None,
    monitor: bool,
    as_json: bool,
    no_wait: bool,
) -> None:
    """Run the pipeline or job of FILE: a script, a notebook, or a .yml.

    A script may define a finished job, define one @dsl.pipeline, or submit what it builds;
    FILE.py:NAME names a job or a function. ARG … are the script's own arguments.
    """
    from mlflow_perf.pipelines import azure, step_sizes
    from mlflow_perf.pipelines.allocation import ask_azure
    from mlflow_perf.pipelines.environments import choose_pythons, parse_pythons
    from mlflow_perf.pipelines.graph import check_settings
    from mlflow_perf.pipelines.loading import load_jobs, parse_settings
    from mlflow_perf.pipelines.sources import Sources, parse_map

    if budget_mb is not None and size is None:
        raise click.UsageError("--memory goes with --size: it bounds what the sizes add up to.")
    _prepare_output()
    sources = Sources(parse_map(maps), say=_say)
    with _printing_as_error(), _explaining_faults(file):
        jobs, path = load_jobs(file, parse_settings(settings), sources=sources, arguments=arguments)
        # Azure ML takes what the runner here may not, and needs no graph of it but for sizes.
        read = jobs if on != "azureml" or size is not None else ()
        graphs = [job.read() for job in read]
    sources.tell_unused(graphs)
    choose_sizes = partial(step_sizes.choose_sizes, budget_mb=budget_mb, beside=graphs)
    if on == "azureml":
        if len({id(loaded.job) for loaded in jobs}) < len(jobs):
            raise PipelineError(
                f"{path} submits one object several times, which Azure ML would get as it is now: "
                "make an object for each submission, or run the script with Python."
            )
        for i, loaded in enumerate(jobs):
            if size is not None:
                ask_azure(loaded.job, choose_sizes(size, graphs[i]), say=_say)
            azure.submit(loaded.job, azure.connect_workspace(), wait=not no_wait, say=click.echo)
        return
    check_settings(graphs)
    given, runs = parse_pythons(pythons, graphs), list[Callable[[], None]]()
    run_one = partial(_run_graph, to=to, on=on, retries=retries, monitor=monitor, as_json=as_json)
    for graph in graphs:
        choose = partial(choose_pythons, graph, given, own=environments == "own", say=_say)
        find = None if size is None else partial(choose_sizes, size, graph)
        runs.append(partial(run_one, graph, choose, find_sizes=find))
    _run_all(runs)


@contextlib.contextmanager
def _printing_as_error() -> Iterator[None]:
    """Move what a script and its programs print: it would be taken for a part of our JSON."""
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # one of the two is closed
            kept = os.dup(1)
            stack.callback(os.close, kept)
            os.dup2(2, 1)
            stack.callback(os.dup2, kept, 1)
        yield


def _run_all(jobs: Sequence[Callable[[], None]]) -> None:
    """Run the jobs of a file, one after the other; an interrupt ends them all, and says so.

    Raises:
        StepFailedError: A step of one of them failed, the first one.
        PipelineStoppedError: They were stopped.
    """
    failed = None
    for number, run_job in enumerate(jobs, 1):
        try:
            run_job()
        except PipelineStoppedError:
            if left := len(jobs) - number:
                _say(f"stopped: {format_count(left, 'job')} of the file did not begin")
            raise
        except StepFailedError as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _prepare_output() -> None:
    """Silence what would clutter the table, and give azure-ai-ml the streams that it needs."""
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    for library in ("alembic", "mlflow.store", "azure"):
        logging.getLogger(library).setLevel(logging.ERROR)
    _tables.open_closed_streams()


@contextlib.contextmanager
def _explaining_faults(file: str) -> Iterator[None]:
    """Report an unforeseen error in a block that reads the user's file as a fault of that file.

    Raises:
        PipelineError: The block raised an exception that is not one of ours.
    """
    try:
        yield
    except MlflowPerfError:
        raise
    # A file's objects, and those of azure-ai-ml, can have any shape.
    except Exception as error:
        _log.debug("%s cannot be read:", file, exc_info=True)
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        raise PipelineError(f"{file} cannot be read as a pipeline or job: {text}") from error


def _say(text: str) -> None:
    click.echo(f"mlflow-perf: {_tables.clean(text)}", err=True)


def _run_graph(
    graph: Graph,
    find_pythons: Callable[[], dict[str, StepPython]],
    *,
    to: Path | None,
    on: str,
    retries: int,
    find_sizes: Callable[[], dict[str, StepSize]] | None,
    monitor: bool,
    as_json: bool,
) -> None:
    """Run one graph, and show how it went; the interpreters are found once all else is checked.

    Raises:
        StepFailedError: A step failed, or the pipeline was stopped.
    """
    from mlflow_perf.pipelines.environments import describe_skinny
    from mlflow_perf.pipelines.executors import Pool, load_config
    from mlflow_perf.pipelines.interrupts import making_store, stopping_by_signal
    from mlflow_perf.pipelines.output_folder import mark_output
    from mlflow_perf.pipelines.runner import Runner
    from mlflow_perf.publish.workflow_writer import Tracking, find_place
    from mlflow_perf.tracking.new_store import making_alone

    config = load_config(on)
    place = find_place(to)
    place.make_default()
    sizes = {}
    if find_sizes is not None:
        with making_store(place.uri), making_alone(place.uri):
            sizes = find_sizes()
    for step, size in sizes.items():
        memory = "unknown" if size.memory_mb is None else f"{size.memory_mb:,} MB"
        cpus = format_count(size.cpus or 1, "CPU")
        _say(f"size of {step}: {memory}, {cpus} ({size.method})")
    pythons = find_pythons()
    if not is_http(place.uri) and (told := describe_skinny(pythons)):
        _say(told)
    base = place.folder or Path("pipeline-runs")
    mark_output(base)
    # The name of a file has 255 bytes at most, and Chinese text three for each character.
    name = re.sub(r"[^\w-]", "-", graph.name).encode()[:_NAME_BYTES].decode(errors="ignore")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    work = base / "work" / f"{name}-{stamp}-{secrets.token_hex(2)}"
    tracking = Tracking(place)
    progress = _Progress(graph.steps)
    runner = Runner(
        graph, tracking, work, retries=retries, pythons=pythons, sizes=sizes, watch=progress.tell
    )
    try:
        with stopping_by_signal():
            result = runner.run(lambda: Pool(config, work / "parsl", monitor=monitor, sizes=sizes))
    except KeyboardInterrupt:
        raise PipelineStoppedError("", "Stopped by an interrupt.") from None
    if monitor:
        _import_spans(work / "parsl", base / "spans.sqlite3")
    _tell_end(graph, result, tracking, as_json=as_json)


def _tell_end(graph: Graph, result: Result, tracking: Tracking, *, as_json: bool) -> None:
    """Show how a pipeline went.

    Raises:
        StepFailedError: A step failed, the pipeline was stopped, or its table cannot be written.
    """
    from mlflow_perf.pipelines.step_table import build_rows

    unwritten = None
    try:
        _show(graph, result, build_rows(graph, result), tracking, as_json=as_json)
    except BrokenPipeError:
        raise
    except OSError as error:  # its steps have run, and nobody is to run them again for that
        _tables.drop_output()
        unwritten = error.strerror
    result.raise_for_status()
    if unwritten:
        message = f"The steps have run, but their table could not be written: {unwritten}."
        raise StepFailedError("", message)


def _import_spans(parsl: Path, db: Path) -> None:
    from mlflow_perf.pipelines.executors import MONITORING_DB
    from mlflow_perf.spans import import_sources

    try:
        found = import_sources([parsl / MONITORING_DB], db)
    # A pipeline that was stopped early may have no tasks; its own outcome is reported all the same.
    except (MlflowPerfError, OSError) as error:
        _log.warning("The tasks are not among the spans: %s", error)
        return
    click.echo(f"spans: {sum(f.spans for f in found)} in {os.path.relpath(db)}", err=True)


def _show(
    graph: Graph, result: Result, rows: list[Row], tracking: Tracking, *, as_json: bool
) -> None:
    """Print the figures of each step, the pipeline's outputs, and how to see the run."""
    if as_json:
        _tables.echo_json(
            {
                "run_id": result.run_id,
                "status": result.status,
                "steps": [row.as_dict() for row in rows],
                "outputs": {name: str(path) for name, path in result.outputs.items()},
            }
        )
        return
    title = _tables.clean(graph.title)
    click.echo(f"\n{title}: {result.status} in {result.duration_sec:.1f} s\n")
    hours = [(row.cpu_hours_used or 0.0) + (row.cpu_hours_unused or 0.0) for row in rows]
    is_short = max(hours, default=0.0) < _SHORT_HOURS
    scale, places = (3600, 1) if is_short else (1, 3)
    cells = []
    for row in rows:
        mark = "" if row.reported or row.cpu_hours_used is None else "*"
        figures = [
            (row.measured_sec, 1, 1),
            (row.cpu_hours_used, scale, places),
            (row.cpu_hours_unused, scale, places),
            (row.max_mem_mb, 1, 0),
            (row.io_read_mb, 1, 1),
            (row.io_write_mb, 1, 1),
        ]
        texts = ["–" if value is None else f"{value * by:.{n}f}" for value, by, n in figures]
        cells.append([row.step + mark, row.status, f"{row.duration_sec:.1f}", row.nodes, *texts])
    unit = "CPU s" if is_short else "CPU h"
    columns = {name.format(unit): [cell[i] for cell in cells] for i, name in enumerate(_HEADER)}
    # At 80 columns a name needs the room of columns that say nothing new.
    if set(columns["status"]) <= {result.status}:
        del columns["status"]
    if set(columns["nodes"]) <= {1}:
        del columns["nodes"]
    lines = list(zip(*columns.values(), strict=True))
    _tables.table(list(columns), lines, right=len(columns) - 1 - ("status" in columns))
    if any(not row.reported and row.cpu_hours_used is not None for row in rows):
        click.echo("* measured by the runner: the step does not report itself")
    for name, path in result.outputs.items():
        click.echo(f"output {name}: {path}")
    link = tracking.place.link(result.run_id, result.experiment_id)
    if tracking.place.folder:
        folder = os.path.relpath(tracking.place.folder)
        click.echo(
            "to see it: mlflow server --workers 1 --app-name mlflow-perf --backend-store-uri "
            f"sqlite:///{folder}/mlflow.db --artifacts-destination {folder}/artifacts"
        )
        click.echo(f"then open: {link}")
    else:
        is_served = is_http(tracking.place.uri)
        click.echo(f"run: {link if is_served else f'mlflow-perf show {result.run_id}'}")


class _Progress:
    """Prints a line when a step begins and when it ends; on a terminal only."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)
        self._width = max(map(len, self._names), default=0)
        self._done = 0
        self._shown = bool(sys.stderr and sys.stderr.isatty())

    def tell(self, name: str, what: str, outcome: Outcome | None) -> None:
        if outcome is not None:
            self._done += 1
            what = f"{outcome.status.lower()} after {outcome.duration_sec:.1f} s"
        if self._shown:
            count = f"[{self._done}/{len(self._names)}]"
            with contextlib.suppress(OSError):  # the terminal was closed
                click.echo(f"{count} {name:<{self._width}}  {what}", err=True)
