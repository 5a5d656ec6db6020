"""`mlflow-perf report`: write a run or a workflow as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from mlflow_perf.cli import _options, _tables
from mlflow_perf.cli._pages import REPORT_FILE, Spans, log_page, make_page


@click.command()
@click.argument("run")
@click.option(
    "--output",
    "-o",
    default=REPORT_FILE,
    show_default=True,
    metavar="FILE",
    help="The file to write; - is standard output.",
)
@click.option("--log", "log", is_flag=True, help="Log the report to RUN instead.")
@click.option(
    "--spans",
    "db",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Show the spans in this database; default: the spans that `spans log` logged to RUN.",
)
@click.option("--root", metavar="TYPE", help="Type of the spans to show; default: Parsl's tasks.")
def command(run: str, *, output: str, log: bool, db: Path | None, root: str | None) -> None:
    """Write RUN and its children as one HTML page that needs no network.

    RUN is a run id, a path to a document, or a folder of node-*.json.
    """
    _options.prepare()
    page = make_page(run, Spans(db, root))
    if log:
        for path in log_page(page):
            click.echo(f"Logged {path} to the run {_tables.clean(run)}", err=True)
        return
    _options.write(output, page.html)
    if output != "-":
        click.echo(f"Wrote {_tables.clean(output)}", err=True)
