"""`mlflow-perf import`: make MLflow runs of the tasks that other workflow systems ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from mlflow_perf.cli import _options, _progress, _tables
from mlflow_perf.core.format import format_count
from mlflow_perf.histories import log_workflow, read_histories
from mlflow_perf.publish.workflow_writer import Place, Tracking, find_place
from mlflow_perf.session.run_finder import find_tracking_uri


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@click.option("--name", metavar="NAME", help="Name of the workflow; by default from the file.")
@click.option("--experiment", metavar="NAME", help="Experiment; by default the workflow's name.")
@click.option(
    "--to",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for an embedded MLflow store. Default: MLFLOW_TRACKING_URI, else this folder.",
)
@_options.as_json
def command(
    files: Sequence[Path],
    *,
    name: str | None,
    experiment: str | None,
    to: Path | None,
    as_json: bool,
) -> None:
    """Import the tasks of Nextflow, Snakemake and Slurm as runs of their components.

    FILE is a Nextflow trace (trace.txt or CSV), a Snakemake benchmark file, the output of sacct
    --parsable2, or a folder of them. Each task becomes a run below a parent run per workflow;
    tasks that were imported before are skipped.
    """
    workflows = read_histories(files, name=name)
    for first, *more in (workflow.doubts for workflow in workflows if workflow.doubts):
        others = f", as in {format_count(len(more), 'more line')}" if more else ""
        click.echo(f"mlflow-perf: {_tables.clean(first)}; it is left out{others}", err=True)
    _options.prepare()
    place = find_place(to) if to is not None else Place(find_tracking_uri())
    place.make_default()
    tracking = Tracking(place)
    done = []
    for workflow in workflows:
        bar = _progress.ProgressBar()
        try:
            found = log_workflow(
                workflow,
                tracking,
                experiment=experiment,
                # Called within the loop's turn.
                watch=lambda n, count: bar(  # noqa: B023
                    f"{n:,}/{format_count(count, 'task')}", n / max(1, count)
                ),
            )
        finally:
            bar.close()
        done.append(found)
    if as_json:
        _tables.echo_json([asdict(found) for found in done])
        return
    for found in done:
        known = f", {found.known:,} known before" if found.known else ""
        left_out = f", {found.left_out:,} left out (did not run or end)" if found.left_out else ""
        tasks = format_count(found.tasks, "task")
        click.echo(
            f"{_tables.clean(found.workflow)}: {tasks} imported{known}{left_out}; "
            f"run {found.run_id}, experiment {_tables.clean(found.experiment)}"
        )
    where = "" if to is None else f"export MLFLOW_TRACKING_URI={place.uri}, then "
    click.echo(f"then: {where}mlflow-perf advise --all, or mlflow-perf report RUN", err=True)
