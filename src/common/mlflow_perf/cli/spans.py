"""`mlflow-perf spans`: a whole workflow's events in one SQL file, and questions to them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlflow_perf import spans
from mlflow_perf.cli import _options, _tables
from mlflow_perf.cli._progress import ProgressBar
from mlflow_perf.cli._tables import clean, echo_json
from mlflow_perf.core.format import MISSING, clock_time, format_count, format_for_people
from mlflow_perf.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DEFAULT_ROOT = "parsl.monitoring.task"
_root_argument = click.argument("root", metavar="[ROOT_TYPE]", default=_DEFAULT_ROOT)
_root_option = click.option(
    "--root", default=_DEFAULT_ROOT, show_default=True, help="Type of the root spans."
)
_db_option = click.option(
    "--db", metavar="FILE", default="spans.sqlite3", show_default=True, help="The spans database."
)
_plot_option = click.option(
    "--plot", "picture", metavar="FILE", help="Also draw it: a .png, .svg or .pdf file."
)


@click.group()
def command() -> None:
    """Put a workflow's events, from any source, into one SQL file and analyse them."""


def _question(
    name: str | None = None, *, plot: bool = False
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function a command with --db and --json, and with --plot if it draws its answer."""

    def decorate(function: Callable[..., None]) -> click.Command:
        drawn = _plot_option(function) if plot else function
        return command.command(name)(_db_option(_options.as_json(drawn)))

    return decorate


@_question("import")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE…")
@click.option(
    "--time-zone",
    default="",
    metavar="ZONE",
    help="Zone of local times whose source shows none: Europe/Vienna, +02:00. [default: this "
    "machine's]",
)
def import_(sources: tuple[str, ...], db: str, *, as_json: bool, time_zone: str) -> None:
    """Import files and folders, each recognised by itself; importing twice changes nothing.

    A SOURCE is a Parsl monitoring.db or runinfo folder, a Work Queue transaction log, a log with
    METRIC lines, a perf document (JSON), OTLP or Chrome trace JSON, an mlflow.db, an MLflow run
    (runs:/ID), or a database that dnpcsql made.
    """
    if any(source.startswith("runs:/") for source in sources):
        _options.prepare()
    bar = ProgressBar()
    try:
        results = spans.import_sources(sources, db, progress=bar, time_zone=time_zone)
    finally:
        bar.close()
    if as_json:
        echo_json([asdict(result) for result in results])
        return
    for result in results:
        counts = {"new span": result.spans, "new event": result.events}
        news = ", ".join(format_count(count, noun) for noun, count in counts.items())
        outcome = "unchanged" if result.unchanged else f"{news}, {result.seconds:.1f} s"
        click.echo(clean(f"{result.source} ({result.importer}): {outcome}"))
        for wording, count in sorted(result.unread.items(), key=lambda item: -item[1]):
            click.echo(clean(f"  not understood: {count} × {wording}"))
        for note in result.notes:
            click.echo(clean(f"  {note}"))


@_question()
def types(db: str, *, as_json: bool) -> None:
    """List the span types, with how many spans and events each has."""
    _echo(spans.types(db), as_json=as_json)


@_question()
@click.argument("query")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, the values as they are.")
@click.option("--write", is_flag=True, help="Let the query change the database.")
def sql(query: str, db: str, *, as_json: bool, as_csv: bool, write: bool) -> None:
    """Run one SQL statement; dnpcsql's tables are views here. Read-only unless asked."""
    if as_json and as_csv:
        raise SettingError("Rows are printed as JSON or as CSV: give one of --json and --csv.")
    rows = spans.sql(db, query, write=write)
    if not as_csv:
        _echo(rows, as_json=as_json)
    elif rows:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        click.echo(text.getvalue(), nl=False)


@_question()
@_root_argument
@click.option("--limit", type=click.IntRange(1), help="How many sequences. [default: 3 in a table]")
@click.option("--percentiles", is_flag=True, help="Add the percentiles of each step.")
def sequences(root: str, db: str, *, as_json: bool, limit: int | None, percentiles: bool) -> None:
    """List the orders in which events happen, the most frequent first, with mean times.

    ROOT_TYPE is the type of the root spans: parsl.monitoring.task by default. Their
    subspans and facets belong to them.
    """
    rows = spans.sequences(db, root, limit=limit if as_json else None, percentiles=percentiles)
    if as_json:
        echo_json(rows)
        return
    total = sum(row["count"] for row in rows)
    click.echo(
        f"Sequences of the events of {format_count(total, 'span')} of type {root}: {len(rows)}"
    )
    for row in rows[: limit or 3]:
        click.echo(f"\n{format_count(row['count'], 'span')}:")
        events = []
        for event in row["events"]:
            times = {name: value for name, value in event.items() if not name.endswith("_type")}
            events.append({"event": f"{event['span_type']}/{event['event_type']}", **times})
        _echo(events, as_json=False)


@_question(plot=True)
@click.argument("start")
@click.argument("end")
@_root_option
def between(
    start: str, end: str, root: str, db: str, *, as_json: bool, picture: str | None
) -> None:
    """Show how long it took from event START to event END, for each root span that has both.

    An event is given by its type, or by span type and event type: parsl.monitoring.try/running. The
    first such event of a root counts.
    """
    from mlflow_perf.spans.analyses.times import summarise_times

    rows = spans.between(db, start, end, root=root)
    if picture:
        _save(spans.plot_times(rows, f"{start} to {end}"), picture)
    _echo(rows if as_json else [summarise_times(rows)], as_json=as_json)


@_question(plot=True)
@click.argument("root", metavar="[ROOT_TYPE]", required=False)
def durations(root: str | None, db: str, *, as_json: bool, picture: str | None) -> None:
    """Show how long spans took, from their own first event to their last, by type.

    The time in which a task waits to run is a part of it; `between` leaves it out: `between
    running exec_done`.

    ROOT_TYPE is one type; by default every type is shown, and parsl.monitoring.task is drawn.
    """
    rows = spans.durations(db, root)
    if picture:
        kind = root or _DEFAULT_ROOT
        _save(spans.plot_times(spans.span_durations(db, kind), f"{kind}: duration"), picture)
    _echo(rows, as_json=as_json)


@_question(plot=True)
@_root_argument
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
    if picture:
        counts = spans.state_counts(db, root, points=points or 1000)
        _save(spans.plot_states(counts, root), picture)
    _echo(spans.states(db, root, points=points or (1000 if as_json else 20)), as_json=as_json)


@_question(plot=True)
@_root_argument
@click.option("--start", help="The event that begins a span. [default: its first]")
@click.option("--end", help="The event that ends it. [default: its last]")
def concurrency(
    root: str, start: str | None, end: str | None, db: str, *, as_json: bool, picture: str | None
) -> None:
    """Show how many spans were under way at once.

    ROOT_TYPE is the type of the spans: parsl.monitoring.task by default.
    """
    from mlflow_perf.spans.analyses.concurrency import summarise_concurrency

    rows = spans.concurrency(db, root, start=start, end=end)
    if picture:
        _save(spans.plot_concurrency(rows, f"{root}: under way at once"), picture)
    _echo(rows if as_json else [summarise_concurrency(rows)], as_json=as_json)


@_question("critical-path")
@_root_argument
@click.option("--run", help="The run's id, or a part of it. [default: the run that ended last]")
def critical_path(root: str, run: str | None, db: str, *, as_json: bool) -> None:
    """Show the chain of tasks that determined when the workflow ended.

    ROOT_TYPE is the type of the spans: parsl.monitoring.task by default. The table counts from the
    time at which the first task could start; --json has the times of the day.
    """
    rows = spans.critical_path(db, root, run=run)
    if as_json:
        echo_json(rows)
        return
    first = rows[0]["released_s"]
    click.echo(f"Critical path from {clock_time(first)}, {_say(rows[-1]['ended_s'] - first)}:\n")
    header = ["task", "name", "could start", "waited", "ran", "ended"]
    table = [
        [
            row["task"],
            row["name"] or "",
            f"+{_say(row['released_s'] - first)}",
            _say(row["waited_s"]) if row["running_s"] is not None else MISSING,
            _say(row["ran_s"]),
            f"+{_say(row['ended_s'] - first)}",
        ]
        for row in rows
    ]
    _tables.table(header, table, right=4)


def _say(seconds: float) -> str:
    return format_for_people([seconds], "s")[0]


@_question()
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="A .dot, .svg, .png or .pdf file. [default: DOT to stdout]",
)
def graph(db: str, output: str | None, *, as_json: bool) -> None:
    """Show the span types and the relations between them."""
    if output:
        spans.draw_graph(db, output)
    elif as_json:
        echo_json(spans.type_graph(db))
    else:
        click.echo(spans.to_dot(spans.type_graph(db)), nl=False)


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
@_db_option
def bind(left: str, right: str, by: str, db: str) -> None:
    """Mark spans of types LEFT and RIGHT as the same thing where their key or name agrees."""
    click.echo(format_count(spans.bind(db, left, right, by=by), "new pair"))


@command.command()
@_db_option
@click.option("--chrome", metavar="FILE", help="Write Chrome trace JSON, for Perfetto.")
@click.option("--parquet", metavar="FOLDER", help="Write Parquet, for DuckDB, Polars or Spark.")
@click.option("--events", is_flag=True, help="Also write each event, as an instant.")
@click.option("--name", help="Its name in the Parquet files. [default: the file's name]")
def export(
    db: str, *, chrome: str | None, parquet: str | None, events: bool, name: str | None
) -> None:
    """Write the spans as a Chrome trace or as Parquet."""
    if chrome is None and parquet is None:
        raise SettingError("Say what to write: --chrome FILE or --parquet FOLDER.")
    if chrome is not None:
        click.echo(spans.to_chrome_trace(db, chrome, events=events))
    for path in spans.to_parquet(db, parquet, name=name) if parquet is not None else ():
        click.echo(path)


@command.command()
@click.argument("run_id", metavar="RUN")
@_root_option
@_db_option
def log(run_id: str, root: str, db: str) -> None:
    """Log the headline times, the pictures and the database to an MLflow run.

    The run's report is written again, with the spans in it.
    """
    from mlflow_perf.cli._pages import Spans, log_page, make_page

    _options.prepare()
    paths = spans.log_to_run(run_id, db, root)
    for path in [*paths, *log_page(make_page(run_id, Spans(Path(db), root)))]:
        click.echo(path)


def _save(figure: Figure, picture: str) -> None:
    from mlflow_perf.spans.output.plots import save

    save(figure, picture)


def _echo(rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print rows as JSON, or as a table with aligned columns, numbers to the right."""
    if as_json:
        echo_json(rows)
        return
    if not rows:
        click.echo("No rows.")
        return
    # Not rich's table: a query may give 100,000 rows, for which that takes 45 seconds.
    columns = []
    for name in rows[0]:
        values = [row.get(name) for row in rows]
        cells = [f"{v:.6f}" if isinstance(v, float) else clean(v) for v in values]
        cells = ["" if v is None else cell for v, cell in zip(values, cells, strict=True)]
        width = max(len(name), *map(len, cells))
        cells = [clean(name), "-" * width, *cells]
        is_number = any(isinstance(value, int | float) for value in values)
        columns.append([c.rjust(width) if is_number else c.ljust(width) for c in cells])
    click.echo("\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True)))
