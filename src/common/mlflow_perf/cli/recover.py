"""`mlflow-perf recover`: log what killed or cut-off jobs left in their journals."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from mlflow_perf.cli import _tables
from mlflow_perf.errors import SettingError
from mlflow_perf.publish.journal import SUFFIX, find_state_folder
from mlflow_perf.publish.recovery import recover

__all__ = ["command"]


@click.command("recover")
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def command(folder: Path | None, *, as_json: bool) -> None:
    """Send to MLflow what killed or cut-off jobs left in their journals.

    DIR is the folder of the journals (default: MLFLOW_PERF_DIR, else the state folder). Journals of
    jobs that are still running are left alone; running it twice, or at once, does no harm.
    """
    place = find_state_folder() if folder is None else folder
    if folder is not None and not folder.is_dir():
        raise SettingError(f"{folder} is no folder; give the one that holds the *.journal files.")
    sent = []
    for recovered in recover(place):
        sent.append(asdict(recovered))
        if not as_json:
            said = f"run {recovered.run_id}, node {recovered.node}: {recovered.cause}"
            click.echo(_tables.clean(said))
    if as_json:
        click.echo(json.dumps(sent))
    elif not sent:
        click.echo(_nothing_sent(place))


def _nothing_sent(place: Path) -> str:
    left = len(list(place.glob(f"*{SUFFIX}")))
    if not left:
        return f"Nothing to recover in {place}."
    journals = "1 journal stays" if left == 1 else f"{left} journals stay"
    return f"Nothing was sent: {journals} in {place}, of running jobs or as said above."
