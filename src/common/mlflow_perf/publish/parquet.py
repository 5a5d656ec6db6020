"""Writes the rows of a fleet into a Parquet file, for DuckDB, Spark or pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow_perf.errors import MissingDependencyError, SettingError


def write_parquet(
    path: Path,
    batches: Iterable[Sequence[Mapping[str, Any]]],
    *,
    texts: Sequence[str],
    times: Sequence[str],
    figures: Sequence[str],
) -> int:
    """Write rows into a file and return their number; a batch is in memory at a time.

    The file is there as a whole or, after a failure, not at all.

    Args:
        path: The file; an older one is replaced.
        batches: Rows by name of the column.
        texts: Names of the columns with a text.
        times: Names of the columns with Unix time in seconds; stored in UTC, to the millisecond.
        figures: Names of the columns with a number.

    Raises:
        MissingDependencyError: When pyarrow is not installed.
        SettingError: When the file cannot be written.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependencyError("pyarrow", "spans") from error
    moment = pa.timestamp("ms", tz="UTC")
    fields = [(name, pa.string()) for name in texts] + [(name, moment) for name in times]
    schema = pa.schema([*fields, *((name, pa.float64()) for name in figures)])
    part = path.with_name(f".{path.name}.part")
    count = 0
    try:
        with parquet.ParquetWriter(part, schema, compression="zstd") as writer:
            for rows in batches:
                columns: dict[str, list[Any]] = {name: [row[name] for row in rows]
                                                 for name in schema.names}  # fmt: skip
                for name in times:
                    columns[name] = [None if v is None else int(1000 * v) for v in columns[name]]
                writer.write_table(pa.table(columns, schema=schema))
                count += len(rows)
        part.replace(path)
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        part.unlink(missing_ok=True)
    return count
