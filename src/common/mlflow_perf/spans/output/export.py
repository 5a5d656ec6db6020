"""Export: Chrome trace JSON for Perfetto, Parquet for DuckDB, Polars and Spark."""

from __future__ import annotations

import heapq
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from mlflow_perf.core.parquet import write_parquet
from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.event_arrays import load_columns
from mlflow_perf.spans.database.schema import Database, open_for_reading

_SPANS = (
    "SELECT s.id, t.text, s.key, coalesce(n.text, ("
    "  SELECT pn.text FROM subspan_row x JOIN span_row p ON p.id = x.super_id"
    "  JOIN string pn ON pn.id = p.name_id WHERE x.sub_id = s.id AND p.scope_id = s.scope_id"
    "  ORDER BY x.super_id LIMIT 1)),"
    " coalesce(h.text, c.name), s.attributes,"
    " min(e.time_us) AS start, max(e.time_us)"
    " FROM span_row s JOIN event_row e ON e.span_id = s.id JOIN string t ON t.id = s.type_id"
    " JOIN scope c ON c.id = s.scope_id"
    " LEFT JOIN string n ON n.id = s.name_id LEFT JOIN string h ON h.id = s.host_id"
    " GROUP BY s.id ORDER BY start, s.id"
)
_EVENTS = "SELECT e.span_id, e.time_us, t.text FROM event_row e JOIN string t ON t.id = e.type_id"
# Parquet file → the view that it copies, and its columns.
_TABLES = {
    "span": (
        "interval",
        ("uuid", "type", "key", "name", "host", "run", "attributes", "start", "end"),
    ),
    "event": ("event", ("span_uuid", "time", "type")),
    "subspan": ("subspan", ("superspan_uuid", "subspan_uuid", "key")),
    "facet": ("facet", ("left_uuid", "right_uuid")),
    "dependency": ("dependency", ("span_uuid", "needs_uuid")),
    "metric": ("metric", ("span_uuid", "time", "name", "value")),
}
_NUMBERS = ("start", "end", "time", "value")
_BATCH_ROWS = 200_000


def to_chrome_trace(db: Database, path: str | Path, *, events: bool = False) -> Path:
    """Write the spans as Chrome trace JSON, which Perfetto and chrome://tracing open.

    Each host is a process; spans without a host appear under their run. Each span type has as many
    lanes there as it has spans at once, so that no span covers another.

    Args:
        db: The database.
        path: The file.
        events: Whether to also write each event, as an instant.

    Raises:
        SpansError: The file cannot be written.
    """
    path = Path(path)
    try:
        with open_for_reading(db) as connection:
            load_columns(connection)  # checks that each event has its span and its type
            with path.open("w", encoding="utf-8") as file:
                file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
                for number, event in enumerate(_trace_events(connection, with_instants=events)):
                    file.write((",\n" if number else "") + json.dumps(event))
                file.write("\n]}\n")
    except OSError as error:
        raise SpansError(f"{path} cannot be written: {error.strerror}.") from error
    return path


def _trace_events(db: sqlite3.Connection, *, with_instants: bool) -> Iterator[dict[str, Any]]:
    processes: dict[str, int] = {}
    # For each process and span type, a heap of when each lane is free again, and its number. Lanes
    # are numbered over all processes: some viewers merge threads of the same number.
    busy: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    lanes = 0
    places: dict[int, tuple[int, int]] = {}
    # The spans are ordered by their start.
    for span, kind, key, name, host, attributes, start, end in db.execute(_SPANS):
        if host not in processes:
            processes[host] = len(processes) + 1
            yield _metadata("process_name", processes[host], 0, host)
        process = processes[host]
        ends = busy[process, kind]
        if ends and ends[0][0] <= start:
            _, lane = heapq.heappop(ends)
        else:
            lanes += 1
            lane = lanes
            yield _metadata("thread_name", process, lane, f"{kind} {len(ends) + 1}")
        heapq.heappush(ends, (end, lane))
        if with_instants:
            places[span] = (process, lane)
        yield {
            "ph": "X",
            "name": str(name or key),
            "cat": kind,
            "ts": start,
            "dur": end - start,
            "pid": process,
            "tid": lane,
            "args": {**(json.loads(attributes) if attributes else {}), "uuid": span, "key": key},
        }
    for span, time, name in db.execute(_EVENTS) if with_instants else ():
        process, lane = places[span]
        yield {"ph": "i", "s": "t", "name": name, "ts": time, "pid": process, "tid": lane}


def _metadata(kind: str, process: int, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": lane, "args": {"name": name}}


def to_parquet(db: Database, folder: str | Path, *, name: str | None = None) -> list[Path]:
    """Write each table as a Parquet file, for tools that read many databases at once.

    Args:
        db: The database.
        folder: The folder of the files; it is created if it does not exist.
        name: The value of the column `database`, which separates the spans of several databases;
            default: the file's own name.

    Returns:
        The files: `span.parquet`, `event.parquet`, `subspan.parquet`, …

    Raises:
        MissingDependencyError: pyarrow is not installed.
        SpansError: The folder cannot be written to.
    """
    folder = Path(folder)
    label = name or (Path(db).stem if isinstance(db, str | Path) else "spans")
    files = []
    try:
        with open_for_reading(db) as connection:
            folder.mkdir(parents=True, exist_ok=True)
            for table, (view, names) in _TABLES.items():
                columns = {"database": "word"} | {
                    name: "number" if name in _NUMBERS
                    else "integer" if name.endswith("uuid") else "word"
                    for name in names
                }  # fmt: skip
                # A key is a number or a text.
                asked = ", ".join(f"CAST({n} AS TEXT)" if n == "key" else n for n in names)
                cursor = connection.execute(f"SELECT ?, {asked} FROM {view}", (label,))  # noqa: S608 - names of ours
                files.append(folder / f"{table}.parquet")
                write_parquet(files[-1], columns, iter(partial(cursor.fetchmany, _BATCH_ROWS), []))
    except OSError as error:
        raise SpansError(f"{folder} cannot be written to: {error.strerror}.") from error
    return files
