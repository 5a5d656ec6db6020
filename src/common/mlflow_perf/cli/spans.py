"""`mlflow-perf spans`: a whole workflow's events in one SQL file, and what they tell."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from mlflow_perf.cli._spans_output import ProgressBar, db_option, echo_rows, json_option

__all__ = ["command"]

_DEFAULT_ROOT = "parsl.monitoring.task"
_root_argument = click.argument("root", metavar="[ROOT_TYPE]", default=_DEFAULT_ROOT)


@click.group()
def command() -> None:
    """Put a workflow's events, from any source, into one SQL file and analyse them."""


@command.command("import")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE…")
@db_option
@json_option
def import_(sources: tuple[str, ...], db: str, *, as_json: bool) -> None:
    """Import files and folders, each recognised by itself; importing twice changes nothing.

    A SOURCE is a Parsl monitoring.db or runinfo folder, a Work Queue transaction log, a log with
    METRIC lines, a perf document (JSON), OTLP or Chrome trace JSON, or an MLflow run (runs:/ID).
    """
    from mlflow_perf.spans import import_sources

    bar = ProgressBar()
    try:
        results = import_sources(sources, db, progress=bar)
    finally:
        bar.close()
    if as_json:
        echo_rows([asdict(r) for r in results], form="json")
        return
    for result in results:
        what = (
            "unchanged"
            if result.unchanged
            else f"{result.spans} new spans, {result.events} new events, {result.seconds:.1f} s"
        )
        click.echo(f"{result.source} ({result.importer}): {what}")
        for wording, count in sorted(result.unread.items(), key=lambda item: -item[1]):
            click.echo(f"  not understood: {count} × {wording}")


@command.command()
@db_option
@json_option
def types(db: str, *, as_json: bool) -> None:
    """List the span types, with how many spans and events each has."""
    from mlflow_perf.spans import types as analysis

    _echo(analysis(db), as_json=as_json)


@command.command()
@click.argument("query")
@db_option
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--write", is_flag=True, help="Let the query change the database.")
def sql(query: str, db: str, *, as_json: bool, as_csv: bool, write: bool) -> None:
    """Run one SQL statement; dnpcsql's tables are there as views. Read-only unless asked."""
    from mlflow_perf.spans import sql as run

    form = "json" if as_json else "csv" if as_csv else "table"
    echo_rows(run(db, query, write=write), form=form)


@command.command()
@_root_argument
@db_option
@json_option
@click.option("--limit", type=click.IntRange(1), help="How many orderings. [default: 3 in a table]")
@click.option("--percentiles", is_flag=True, help="Add the percentiles of each step.")
def sequences(root: str, db: str, *, as_json: bool, limit: int | None, percentiles: bool) -> None:
    """List the orders in which events happen, the most frequent first, with mean times."""
    from mlflow_perf.spans import sequences as analysis

    rows = analysis(db, root, limit=limit, percentiles=percentiles)
    if as_json:
        echo_rows(rows, form="json")
        return
    spans = sum(row["count"] for row in rows)
    click.echo(f"{len(rows)} orderings of the events of {spans} spans of type {root}")
    for row in rows[: limit or 3]:
        click.echo(f"\n{row['count']} spans:")
        echo_rows([_without_types(event) for event in row["events"]], form="table")


@command.command()
@click.argument("start")
@click.argument("end")
@click.option("--root", default=_DEFAULT_ROOT, show_default=True, help="Type of the root spans.")
@db_option
@json_option
def between(start: str, end: str, root: str, db: str, *, as_json: bool) -> None:
    """Show how long it took from event START to event END, for each root span that has both."""
    from mlflow_perf.spans import between as analysis

    rows = analysis(db, start, end, root=root)
    if as_json:
        echo_rows(rows, form="json")
        return
    from mlflow_perf.spans.analyses import summary_of

    echo_rows([summary_of(rows)], form="table")


@command.command()
@click.argument("root", metavar="[ROOT_TYPE]", required=False)
@db_option
@json_option
def durations(root: str | None, db: str, *, as_json: bool) -> None:
    """Show how long spans took, from their own first event to their last, by type."""
    from mlflow_perf.spans import durations as analysis

    _echo(analysis(db, root), as_json=as_json)


@command.command()
@_root_argument
@db_option
@json_option
@click.option(
    "--points",
    type=click.IntRange(2),
    default=None,
    help="At how many times. [default: 1000; 20 in a table]",
)
def states(root: str, db: str, *, as_json: bool, points: int | None) -> None:
    """Show how many spans are in which state over time."""
    from mlflow_perf.spans import states as analysis

    _echo(analysis(db, root, points=points or (1000 if as_json else 20)), as_json=as_json)


def _echo(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    echo_rows(rows, form="json" if as_json else "table")


def _without_types(event: dict[str, Any]) -> dict[str, Any]:
    """Return one event of an ordering with its two types in one column."""
    times = {k: v for k, v in event.items() if not k.endswith("_type")}
    return {"event": f"{event['span_type']}/{event['event_type']}", **times}
