"""`mlflow-perf spans`: a whole workflow's events in one SQL file, and questions to them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from mlflow_perf.cli._spans_output import (
    ProgressBar,
    db_option,
    echo_rows,
    json_option,
    plot_option,
    printable,
)
from mlflow_perf.errors import SettingError

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
    METRIC lines, a perf document (JSON), OTLP or Chrome trace JSON, an mlflow.db, an MLflow run
    (runs:/ID), or a database that dnpcsql made.
    """
    from mlflow_perf.spans import import_sources

    if any(source.startswith("runs:/") for source in sources):
        _prepare()
    bar = ProgressBar()
    try:
        results = import_sources(sources, db, progress=bar)
    finally:
        bar.close()
    if as_json:
        echo_rows([asdict(r) for r in results], form="json")
        return
    for result in results:
        news = f"{result.spans} new spans, {result.events} new events, {result.seconds:.1f} s"
        outcome = "unchanged" if result.unchanged else news
        click.echo(printable(f"{result.source} ({result.importer}): {outcome}"))
        for wording, count in sorted(result.unread.items(), key=lambda item: -item[1]):
            click.echo(printable(f"  not understood: {count} × {wording}"))


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
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, the values as they are.")
@click.option("--write", is_flag=True, help="Let the query change the database.")
def sql(query: str, db: str, *, as_json: bool, as_csv: bool, write: bool) -> None:
    """Run one SQL statement; dnpcsql's tables are views here. Read-only unless asked."""
    from mlflow_perf.spans import sql as run

    if as_json and as_csv:
        raise SettingError("Rows are printed as JSON or as CSV: give one of --json and --csv.")
    form = "json" if as_json else "csv" if as_csv else "table"
    echo_rows(run(db, query, write=write), form=form)


@command.command()
@_root_argument
@db_option
@json_option
@click.option("--limit", type=click.IntRange(1), help="How many sequences. [default: 3 in a table]")
@click.option("--percentiles", is_flag=True, help="Add the percentiles of each step.")
def sequences(root: str, db: str, *, as_json: bool, limit: int | None, percentiles: bool) -> None:
    """List the orders in which events happen, the most frequent first, with mean times.

    ROOT_TYPE is the type of the root spans: parsl.monitoring.task by default. Their
    subspans and facets belong to them.
    """
    from mlflow_perf.spans import sequences as analysis

    rows = analysis(db, root, limit=limit if as_json else None, percentiles=percentiles)
    if as_json:
        echo_rows(rows, form="json")
        return
    spans = sum(row["count"] for row in rows)
    click.echo(f"Sequences of the events of {spans} spans of type {root}: {len(rows)}")
    for row in rows[: limit or 3]:
        click.echo(f"\n{row['count']} spans:")
        events = []
        for event in row["events"]:
            times = {name: value for name, value in event.items() if not name.endswith("_type")}
            events.append({"event": f"{event['span_type']}/{event['event_type']}", **times})
        echo_rows(events, form="table")


@command.command()
@click.argument("start")
@click.argument("end")
@click.option("--root", default=_DEFAULT_ROOT, show_default=True, help="Type of the root spans.")
@db_option
@json_option
@plot_option
def between(
    start: str, end: str, root: str, db: str, *, as_json: bool, picture: str | None
) -> None:
    """Show how long it took from event START to event END, for each root span that has both.

    An event is given by its type, or by span type and event type: parsl.monitoring.try/running. The
    first such event of a root counts.
    """
    from mlflow_perf.spans import between as analysis
    from mlflow_perf.spans.analyses.times import summarise_times

    rows = analysis(db, start, end, root=root)
    if picture:
        _draw_times(rows, f"{start} to {end}", picture)
    _echo(rows if as_json else [summarise_times(rows)], as_json=as_json)


@command.command()
@click.argument("root", metavar="[ROOT_TYPE]", required=False)
@db_option
@json_option
@plot_option
def durations(root: str | None, db: str, *, as_json: bool, picture: str | None) -> None:
    """Show how long spans took, from their own first event to their last, by type.

    ROOT_TYPE is one type; by default every type is shown, and parsl.monitoring.task is drawn.
    """
    from mlflow_perf.spans import durations as analysis
    from mlflow_perf.spans import span_durations

    rows = analysis(db, root)
    if picture:
        kind = root or _DEFAULT_ROOT
        _draw_times(span_durations(db, kind), f"{kind}: duration", picture)
    _echo(rows, as_json=as_json)


@command.command()
@_root_argument
@db_option
@json_option
@plot_option
@click.option(
    "--points",
    type=click.IntRange(2),
    help="The number of times. [default: 20 in a table, else 1000]",
)
def states(root: str, db: str, *, as_json: bool, picture: str | None, points: int | None) -> None:
    """Show how many spans are in which state over time.

    ROOT_TYPE is the type of the root spans: parsl.monitoring.task by default. Their
    subspans and facets belong to them.
    """
    from mlflow_perf.spans import plot_states, state_counts
    from mlflow_perf.spans import states as analysis
    from mlflow_perf.spans.output.plots import save

    if picture:
        save(plot_states(state_counts(db, root, points=points or 1000), root), picture)
        if not as_json:
            return
    _echo(analysis(db, root, points=points or (1000 if as_json else 20)), as_json=as_json)


@command.command()
@_root_argument
@click.option("--start", help="The event that begins a span. [default: its first]")
@click.option("--end", help="The event that ends it. [default: its last]")
@db_option
@json_option
@plot_option
def concurrency(
    root: str, start: str | None, end: str | None, db: str, *, as_json: bool, picture: str | None
) -> None:
    """Show how many spans were under way at once.

    ROOT_TYPE is the type of the spans: parsl.monitoring.task by default.
    """
    from mlflow_perf.spans import concurrency as analysis
    from mlflow_perf.spans import plot_concurrency
    from mlflow_perf.spans.analyses.concurrency import summarise_concurrency
    from mlflow_perf.spans.output.plots import save

    rows = analysis(db, root, start=start, end=end)
    if picture:
        save(plot_concurrency(rows, f"{root}: under way at once"), picture)
    _echo(rows if as_json else [summarise_concurrency(rows)], as_json=as_json)


@command.command("critical-path")
@_root_argument
@click.option("--run", help="The run's id, or a part of it. [default: the run that ended last]")
@db_option
@json_option
def critical_path(root: str, run: str | None, db: str, *, as_json: bool) -> None:
    """Show the chain of tasks that determined when the workflow ended.

    ROOT_TYPE is the type of the spans: parsl.monitoring.task by default.
    """
    from mlflow_perf.spans import critical_path as analysis

    _echo(analysis(db, root, run=run), as_json=as_json)


@command.command()
@db_option
@json_option
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="A .dot, .svg, .png or .pdf file. [default: DOT to stdout]",
)
def graph(db: str, output: str | None, *, as_json: bool) -> None:
    """Show the span types and the relations between them."""
    from mlflow_perf.spans import draw_graph, to_dot, type_graph

    if output:
        draw_graph(db, output)
    elif as_json:
        click.echo(json.dumps(type_graph(db), indent=1, ensure_ascii=False))
    else:
        click.echo(to_dot(type_graph(db)), nl=False)


@command.command()
@click.argument("left")
@click.argument("right")
@click.option(
    "--by",
    type=click.Choice(["key", "name"]),
    default="key",
    show_default=True,
    help="What must agree: the key within one run, or the name anywhere.",
)
@db_option
def bind(left: str, right: str, by: str, db: str) -> None:
    """Mark spans of types LEFT and RIGHT as the same thing where their key or name agrees."""
    from mlflow_perf.spans import bind as bind_spans

    click.echo(f"{bind_spans(db, left, right, by=by)} new pairs")


@command.command()
@db_option
@click.option("--chrome", metavar="FILE", help="Write Chrome trace JSON, for Perfetto.")
@click.option("--parquet", metavar="FOLDER", help="Write Parquet, for DuckDB, Polars or Spark.")
@click.option("--events", is_flag=True, help="Also write each event, as an instant.")
@click.option("--name", help="Its name in the Parquet files. [default: the file's name]")
def export(
    db: str, *, chrome: str | None, parquet: str | None, events: bool, name: str | None
) -> None:
    """Write the spans as a Chrome trace or as Parquet."""
    from mlflow_perf.spans import to_chrome_trace, to_parquet

    if chrome is None and parquet is None:
        raise SettingError("Say what to write: --chrome FILE or --parquet FOLDER.")
    if chrome is not None:
        click.echo(to_chrome_trace(db, chrome, events=events))
    for path in to_parquet(db, parquet, name=name) if parquet is not None else ():
        click.echo(path)


@command.command()
@click.argument("run_id", metavar="RUN")
@click.option("--root", default=_DEFAULT_ROOT, show_default=True, help="Type of the root spans.")
@db_option
def log(run_id: str, root: str, db: str) -> None:
    """Log the headline times, the pictures and the database to an MLflow run.

    The run's report is written again, with the spans in it.
    """
    from mlflow_perf.cli._pages import Spans, log_page, make_page
    from mlflow_perf.spans import log_to_run

    _prepare()
    paths = log_to_run(run_id, db, root)
    for path in [*paths, *log_page(make_page(run_id, Spans(Path(db), root)))]:
        click.echo(path)


def _prepare() -> None:
    """Prepare for requests to MLflow, which the other commands do not load."""
    from mlflow_perf.cli import _options

    _options.prepare()


def _draw_times(rows: list[dict[str, Any]], title: str, picture: str) -> None:
    from mlflow_perf.spans.output.plots import plot_times, save

    save(plot_times(rows, title), picture)


def _echo(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    echo_rows(rows, form="json" if as_json else "table")
