"""`mlflow-perf download`: write a run's documents as files."""

from __future__ import annotations

import re
from itertools import chain, count
from pathlib import Path

import click

from mlflow_perf.analysis.step_runs import find_steps, name_steps
from mlflow_perf.analysis.workflow import build_workflow
from mlflow_perf.cli import _options, _tables
from mlflow_perf.core.json_io import to_json, write_text
from mlflow_perf.errors import RunNotFoundError, SettingError
from mlflow_perf.model.document import PerfDocument
from mlflow_perf.reports.speedscope import save_speedscope
from mlflow_perf.tracking.load import read_documents, save_nodes
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.search import get_run

_UNSAFE = re.compile(r"[^0-9A-Za-z._ -]")


@click.command()
@click.argument("run")
@click.argument("directory", required=False, type=click.Path(file_okay=False, path_type=Path))
@_options.as_json
def command(run: str, directory: Path | None, *, as_json: bool) -> None:
    """Write the JSON artifacts of RUN into DIRECTORY, one node-<n>.json per node.

    A node with a profile also has profile-<n>.speedscope.json, for speedscope.app. The default
    DIRECTORY is perf- and the first eight characters of the run's id. For a workflow's parent run,
    each step gets a folder, and workflow.json describes the whole.
    """
    _options.prepare()
    found = get_run(run)
    folder = directory or Path(f"perf-{_make_folder_name((found.run_id or 'run')[:8])}")
    try:
        files = _write_documents(run, found, folder)
    except OSError as error:
        raise SettingError(f"{str(folder)!r} cannot be written: {error.strerror}.") from error
    if as_json:
        _tables.echo_json([str(path) for path in files])
    else:
        click.echo(f"{len(files)} file{'s' if len(files) != 1 else ''} in {_tables.clean(folder)}")


def _write_documents(source: str, run: PerfRun, folder: Path) -> list[Path]:
    """Write the documents of a run, or of each step of a workflow; return their paths."""
    if run.document is not None:
        return [path for one in read_documents(source) for path in _save(one, folder)]
    steps = find_steps(run, documents=True)
    workflow = build_workflow(run, steps)
    files: list[Path] = []
    taken: set[str] = set()
    for name, step in name_steps(steps).items():
        plain = _make_folder_name(name)
        # The second of two steps with the same folder name gets a number.
        numbered = (f"{plain}-{number}" for number in count(2))
        own = next(n for n in chain([plain], numbered) if n.casefold() not in taken)
        taken.add(own.casefold())
        if step.document is not None and step.run_id is not None:
            for document in read_documents(f"runs:/{step.run_id}"):
                files += _save(document, folder / own)
    if workflow is None or not files:
        raise RunNotFoundError(f"The run {run.label} holds no performance documents.")
    return [*files, write_text(folder / "workflow.json", to_json(workflow.as_dict()))]


def _save(document: PerfDocument, folder: Path) -> list[Path]:
    """Write what the run's artifact folder has: the documents, and a profile beside each."""
    return [*save_nodes(document, folder), *save_speedscope(document, folder)]


def _make_folder_name(step: str) -> str:
    """Return a name for one folder, which cannot lead out of its parent."""
    return _UNSAFE.sub("_", step).strip(". ")[:100] or "step"
