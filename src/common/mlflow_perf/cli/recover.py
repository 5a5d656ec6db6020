"""`mlflow-perf recover`: log the journals of killed or disconnected jobs."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

import click

from mlflow_perf.cli import _options, _tables
from mlflow_perf.core import workspaces
from mlflow_perf.core.format import format_count
from mlflow_perf.errors import SettingError
from mlflow_perf.publish.journal_file import find_state_folder
from mlflow_perf.publish.recovery import Recovered, recover_each

_DONE = {
    "sent": "sent now; why not before",
    "known": "the run had these figures already; why its job did not send them",
    "not begun": "its block had not begun",
}
_UNSENT = 2  # as of every command whose output cannot be written


@click.command("recover")
@click.argument(
    "folder", metavar="[DIR]", required=False, type=click.Path(readable=False, path_type=Path)
)
@click.option(
    "--any-host",
    is_flag=True,
    help="Also send journals of other hosts, and on file systems without locks: "
    "only when their jobs have ended.",
)
@_options.as_json
def command(folder: Path | None, *, any_host: bool, as_json: bool) -> None:
    """Send the journals of killed or disconnected jobs to MLflow.

    DIR is the folder of the journals (default: MLFLOW_PERF_DIR, else the state folder). Journals of
    running jobs are left alone. Running it twice, or several times at once, does no harm. Ends with
    2 when a report could not be sent: its journal stays. Journals of running jobs, and of other
    hosts, are no failure.
    """
    if folder is not None and not folder.is_dir():
        raise SettingError(f"{folder} is no folder; give the one that holds the *.journal files.")
    place = find_state_folder() if folder is None else folder
    if place.is_dir() and not os.access(place, os.R_OK | os.X_OK):
        raise SettingError(f"{place} may not be read by this user.")
    _options.limit_retries()
    # A line of ours has the reason; MLflow adds a traceback for each statement that fails, and half
    # a page for each tag of a run where there is no git.
    for library in ("mlflow.store.db.utils", "mlflow.utils.git_utils"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    done = []
    # A job without a workspace had its server's default one, which only a request without any names
    # on every server. So the variable of this shell must not count.
    here = os.environ.pop(workspaces.VARIABLE, None)
    left = recover_each(place, of_any_host=any_host, workspace=here, switch_store=True)
    for one in left:
        done.append(one)
        if not as_json and one.outcome != "kept":  # a warning has said why
            click.echo(_tables.clean(_describe(one)))
    if as_json:
        # With the journal of a running job nothing is done.
        click.echo(json.dumps([asdict(one) for one in done if one.outcome != "running"]))
    elif not done:
        click.echo(f"Nothing to recover in {place}.")
    elif not any(one.is_done for one in done):
        click.echo(f"Nothing was sent; {place} still holds {format_count(len(done), 'journal')}.")
    if not as_json and any(one.outcome == "other host" for one in done):
        send = shlex.join(
            ["mlflow-perf", "recover", "--any-host", *([str(folder)] if folder else [])]
        )
        click.echo(f"If those jobs have ended, send them with: {send}")
    if any(one.outcome == "kept" for one in done):
        sys.exit(_UNSENT)


def _describe(one: Recovered) -> str:
    """Return what was done with a journal now, told apart from its job's reason to leave it."""
    if not one.is_done:
        return f"{one.journal} stays: {one.cause}"
    what = "it had no run, so that nothing was sent"
    if one.run_id is not None:
        what = f"run {one.run_id}, node {one.node}: {_DONE[one.outcome]}"
    return f"{what}: {one.cause}" if one.cause else what.partition(";")[0]
