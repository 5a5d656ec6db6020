"""`mlflow-perf fleet`: sum up the resources that all runs held and left unused, by group."""

from __future__ import annotations

import time
from pathlib import Path

import click

from mlflow_perf.analysis.fleet import build_digest, sum_fleet
from mlflow_perf.cli import _options, _tables
from mlflow_perf.core.format import format_count, parse_age
from mlflow_perf.core.parquet import write_parquet
from mlflow_perf.errors import SettingError
from mlflow_perf.reports.digest import build_table, say_totals, to_html, to_markdown
from mlflow_perf.tracking.fleet_sums import GROUPS
from mlflow_perf.tracking.fleet_table import FIGURE_KEYS, TEXT_KEYS, TIME_KEYS, iterate_rows

_ROWS_MAX = 40
_DIGESTS = {".md": to_markdown, ".html": to_html}


@click.command()
@click.option(
    "--by", default="experiment", show_default=True, type=click.Choice(GROUPS), help="Groups."
)
@click.option("--since", metavar="AGE", help="Only runs started in the last 24h, 30d, 4w.")
@click.option(
    "--digest",
    metavar="FILE",
    help="Write the last seven days, or those of --since, to FILE.md or FILE.html: changes for "
    "the worse, and recommendations.",
)
@click.option(
    "--parquet",
    metavar="FILE",
    help="Write a row of figures for each component of each run, for DuckDB, Spark or pandas.",
)
@_options.as_json
def command(
    *, by: str, since: str | None, digest: str | None, parquet: str | None, as_json: bool
) -> None:
    """Sum up the hours and costs that all runs held and left unused, most unused first.

    If this machine can reach the store's database, the database computes the sums. Otherwise the
    server is asked for each run, which takes seconds for a thousand runs.
    """
    _options.prepare()
    age_sec = None if since is None else parse_age(since)
    render = None if digest is None else _DIGESTS.get(Path(digest).suffix.lower())
    if digest is not None and render is None:
        raise SettingError(f"--digest takes a FILE.md or a FILE.html, not {digest!r}.")
    if digest is not None and render is not None:
        _options.write(digest, render(build_digest(by, age_sec)))
        click.echo(f"Wrote {_tables.clean(digest)}", err=True)
        if not as_json:
            return
    begin = None if age_sec is None else time.time() - age_sec
    if parquet is not None:
        kinds = {"text": TEXT_KEYS, "time": TIME_KEYS, "number": FIGURE_KEYS}
        columns = {name: kind for kind, names in kinds.items() for name in names}
        batches = (
            [[row[name] for name in columns] for row in rows] for rows in iterate_rows(begin)
        )
        try:
            count = write_parquet(Path(parquet), columns, batches)
        except OSError as error:
            raise SettingError(
                f"{parquet} cannot be written: {error.strerror or error}."
            ) from error
        click.echo(f"Wrote {_tables.clean(parquet)}: {format_count(count, 'row')}", err=True)
        if not as_json:
            return
    rows = sum_fleet(by, since=begin)
    if as_json:
        _tables.echo_json([row.as_dict() for row in rows])
        return
    if not rows:
        click.echo("No run with performance data.")
        return
    click.echo(_tables.wrap(say_totals(rows)) + "\n")
    header, cells = build_table(by, rows[:_ROWS_MAX])
    _tables.table(header, cells, right=len(header) - 1)
    if len(rows) > _ROWS_MAX:
        click.echo(f"… and {len(rows) - _ROWS_MAX} more: --json has them all.")
