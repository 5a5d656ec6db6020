"""Export: Chrome trace JSON for Perfetto, Parquet for DuckDB, Polars and Spark.

May import errors, spans.analyses, spans.columns, spans.schema. The only importer of pyarrow among
the spans.
"""

from __future__ import annotations

import heapq
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlflow_perf.errors import MissingDependencyError, SpansError
from mlflow_perf.spans.analyses.timings import Database
from mlflow_perf.spans.database.event_arrays import columns_of
from mlflow_perf.spans.database.schema import reading

__all__ = ["to_chrome_trace", "to_parquet"]

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
# Parquet file -> its columns and the query of its rows.
_TABLES = {
    "span": (
        ("uuid", "type", "key", "name", "host", "run", "attributes", "start", "end"),
        (
            "SELECT uuid, type, CAST(key AS TEXT), name, host, run, attributes, start, end"
            " FROM interval"
        ),
    ),
    "event": (("span_uuid", "time", "type"), "SELECT span_uuid, time, type FROM event"),
    "subspan": (
        ("superspan_uuid", "subspan_uuid", "key"),
        "SELECT superspan_uuid, subspan_uuid, key FROM subspan",
    ),
    "facet": (("left_uuid", "right_uuid"), "SELECT left_uuid, right_uuid FROM facet"),
    "dependency": (("span_uuid", "needs_uuid"), "SELECT span_uuid, needs_uuid FROM dependency"),
    "metric": (
        ("span_uuid", "time", "name", "value"),
        "SELECT span_uuid, time, name, value FROM metric",
    ),
}
_PARQUET_TYPES = {
    "start": "float64", "end": "float64", "time": "float64", "value": "float64",
    "uuid": "int64", "span_uuid": "int64", "superspan_uuid": "int64", "subspan_uuid": "int64",
    "left_uuid": "int64", "right_uuid": "int64", "needs_uuid": "int64",
}  # fmt: skip
_BATCH_ROWS = 200_000


def to_chrome_trace(db: Database, path: str | Path, *, events: bool = False) -> Path:
    """Write the spans as Chrome trace JSON, which Perfetto and chrome://tracing open.

    Each host (or run, where no host is known) is a process; each span type has as many lanes there
    as it has spans at once, so that none covers another.

    Args:
        db: The database.
        path: The file.
        events: Whether to write each event too, as an instant.

    Raises:
        SpansError: The file cannot be written.
    """
    path = Path(path)
    try:
        with reading(db) as connection:
            columns_of(connection)  # finds out whether each event has its span and its type
            with path.open("w", encoding="utf-8") as file:
                file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
                for number, event in enumerate(_trace_events(connection, with_instants=events)):
                    file.write((",\n" if number else "") + json.dumps(event))
                file.write("\n]}\n")
    except OSError as error:
        raise SpansError(f"{path} cannot be written: {error.strerror}.") from error
    return path


def to_parquet(db: Database, folder: str | Path, *, name: str | None = None) -> list[Path]:
    """Write each table as a Parquet file, for tools that read many databases at once.

    Args:
        db: The database.
        folder: Where to; it is made when it is not there.
        name: What to call this database in the column `database`, which tells apart the spans of
            several; default: the file's own name.

    Returns:
        The files: `span.parquet`, `event.parquet`, `subspan.parquet`, …

    Raises:
        MissingDependencyError: pyarrow is not installed.
        SpansError: The folder cannot be written to.
    """
    folder = Path(folder)
    label = name or (Path(db).stem if isinstance(db, str | Path) else "spans")
    try:
        with reading(db) as connection:
            folder.mkdir(parents=True, exist_ok=True)
            return [_write_table(connection, table, folder, label) for table in _TABLES]
    except OSError as error:
        raise SpansError(f"{folder} cannot be written to: {error.strerror}.") from error


def _write_table(db: sqlite3.Connection, table: str, folder: Path, label: str) -> Path:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependencyError("pyarrow", "spans") from error
    names, query = _TABLES[table]
    text = pa.dictionary(pa.int32(), pa.string())
    kinds = [pa.type_for_alias(_PARQUET_TYPES[n]) if n in _PARQUET_TYPES else text for n in names]
    fields = [("database", text), *zip(names, kinds, strict=True)]
    schema = pa.schema(fields)
    path = folder / f"{table}.parquet"
    cursor = db.execute(query)
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while rows := cursor.fetchmany(_BATCH_ROWS):
            values = [[label] * len(rows), *map(list, zip(*rows, strict=True))]
            arrays = [pa.array(v, kind) for v, (_, kind) in zip(values, fields, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return path


def _trace_events(db: sqlite3.Connection, *, with_instants: bool) -> Iterator[dict[str, Any]]:
    lanes = _Lanes()
    places: dict[int, tuple[int, int]] = {}
    for span, kind, key, name, host, attributes, start, end in db.execute(_SPANS):
        process, lane, fresh = lanes.take(host, kind, start, end)
        yield from fresh
        if with_instants:
            places[span] = (process, lane)
        about = json.loads(attributes) if attributes else {}
        yield {
            "ph": "X",
            "name": str(name or key),
            "cat": kind,
            "ts": start,
            "dur": end - start,
            "pid": process,
            "tid": lane,
            "args": {**about, "uuid": span, "key": key},
        }
    for span, time, name in db.execute(_EVENTS) if with_instants else ():
        process, lane = places[span]
        yield {"ph": "i", "s": "t", "name": name, "ts": time, "pid": process, "tid": lane}


class _Lanes:
    """Gives each span a lane of its host and type in which nothing else is under way."""

    def __init__(self) -> None:
        self._processes: dict[str, int] = {}
        # When each lane of a process and type is free again.
        self._busy: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
        # Numbered over all processes: a viewer may hold threads of one number for the same.
        self._lanes = 0

    def take(
        self, host: str, kind: str, start: int, end: int
    ) -> tuple[int, int, list[dict[str, Any]]]:
        """Return process and lane of a span, and the metadata of those that are new.

        Spans come in the order of their start.
        """
        fresh = []
        if host not in self._processes:
            self._processes[host] = len(self._processes) + 1
            fresh.append(_named("process_name", self._processes[host], 0, host))
        process = self._processes[host]
        busy = self._busy[process, kind]
        if busy and busy[0][0] <= start:
            _, lane = heapq.heappop(busy)
        else:
            self._lanes += 1
            lane = self._lanes
            fresh.append(_named("thread_name", process, lane, f"{kind} {len(busy) + 1}"))
        heapq.heappush(busy, (end, lane))
        return process, lane, fresh


def _named(what: str, process: int, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": lane, "args": {"name": name}}
