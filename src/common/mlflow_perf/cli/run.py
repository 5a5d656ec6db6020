"""`mlflow-perf run`: run a command of any language, with its metrics in MLflow."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from mlflow_perf.cli._wrapped import ending_by_signal, leave, prepare_command
from mlflow_perf.core.settings import Settings, read_setting
from mlflow_perf.session.command import name_component, run_command
from mlflow_perf.session.run_check import check_run
from mlflow_perf.session.step_command import StepCommand


@click.command(
    "run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False}
)
@click.option(
    "--name", metavar="N", help="The component; default: the name of the command, script or module."
)
@click.option("--interval", type=float, metavar="S", help="Seconds between two samples; default 1.")
@click.option(
    "--run-id", metavar="R", help="The MLflow run to report to; default: the run that CMD starts."
)
@click.option("--scrape", multiple=True, metavar="URL", help="Also read this Prometheus endpoint.")
@click.option("--own-run", is_flag=True, help="Report to a run of its own, even if CMD starts one.")
@click.option("--hold", is_flag=True, hidden=True, help="Leave the report in the journal.")
@click.option("--end-file", hidden=True, help="The file that gets the status of a step's command.")
@click.option("--heed-stop", is_flag=True, hidden=True, help="End when the step's runner says so.")
@click.argument("argv", metavar="-- CMD …", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    argv: tuple[str, ...],
    *,
    name: str | None,
    interval: float | None,
    run_id: str | None,
    scrape: tuple[str, ...],
    own_run: bool,
    hold: bool,
    end_file: str | None,
    heed_stop: bool,
) -> None:
    """Run a command, and report to MLflow what it used, wasted and waited for.

    The command keeps its own output, input, terminal, signals and exit code. A signal that ends it
    ends this process too, so a shell's $? is 128 + n. Metrics, artifacts and the run's status are
    the same as with report().

    If the command starts exactly one MLflow run, the report goes into that run. Otherwise the
    report gets its own run, linked to the runs that the command started.
    """
    file = None if end_file is None else Path(end_file)
    step = StepCommand(file, heeds_stop=heed_stop) if file or heed_stop else None
    if step is not None and read_setting("disable"):
        step.note_begin()
    prepare_command(argv)
    if hold:
        # The last line of the log is the command's: it tells a pipeline why a step failed.
        logging.getLogger("mlflow_perf").setLevel(logging.CRITICAL)
    with ending_by_signal():
        settings = Settings.load(name=name, interval=interval, run_id=run_id, scrape=scrape or None)
        if settings.run_id is not None:
            check_run(settings.run_id, settings.start_timeout)
        name = settings.name or name_component(argv)
        code = run_command(argv, name, settings, hold=hold, own_run=own_run, step=step)
    leave(code)
