"""`mlflow-perf recover`: log what killed or cut-off jobs left in their journals."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from mlflow_perf.cli import _options, _tables
from mlflow_perf.errors import SettingError
from mlflow_perf.publish.journal import SUFFIX, find_state_folder
from mlflow_perf.publish.recovery import recover

__all__ = ["command"]


@click.command("recover")
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@_options.as_json
def command(folder: Path | None, *, as_json: bool) -> None:
    """Send to MLflow what killed or cut-off jobs left in their journals.

    DIR is the folder of the journals (default: MLFLOW_PERF_DIR, else the state folder). Journals of
    running jobs are left alone. Running it twice, or several times at once, does no harm.
    """
    if folder is not None and not folder.is_dir():
        raise SettingError(f"{folder} is no folder; give the one that holds the *.journal files.")
    place = find_state_folder() if folder is None else folder
    sent = []
    for recovered in recover(place):
        sent.append(asdict(recovered))
        if not as_json:
            line = f"run {recovered.run_id}, node {recovered.node}: {recovered.cause}"
            click.echo(_tables.clean(line))
    if as_json:
        click.echo(json.dumps(sent))
    elif not sent:
        left = len(list(place.glob(f"*{SUFFIX}")))
        journals = "1 journal stays" if left == 1 else f"{left} journals stay"
        click.echo(
            f"Nothing was sent: {journals} in {place}, of running jobs or as said above."
            if left
            else f"Nothing to recover in {place}."
        )
