"""Writes rows into a Parquet file, for DuckDB, Polars, Spark or pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow_perf.core.extras import needing
from mlflow_perf.core.new_file import replacing


def write_parquet(
    path: Path, columns: Mapping[str, str], batches: Iterable[Sequence[Sequence[Any]]]
) -> int:
    """Write rows into a file and return their number; a batch is in memory at a time.

    The file is there as a whole or, after a failure, not at all.

    Args:
        path: The file; an older one is replaced, and a device or a pipe is written to.
        columns: Name → kind: `text`; `word`, a text that repeats; `integer`; `number`; or `time`,
            Unix time in seconds, which is stored in UTC to the millisecond.
        batches: Rows with a value for each column; None where it is missing.

    Raises:
        MissingDependencyError: When pyarrow is not installed.
        OSError: When the file cannot be written.
    """
    with needing("pyarrow", "spans"):
        import pyarrow as pa
        from pyarrow import parquet
    types = {
        "text": pa.string(),
        "word": pa.dictionary(pa.int32(), pa.string()),
        "integer": pa.int64(),
        "number": pa.float64(),
        "time": pa.timestamp("ms", tz="UTC"),
    }
    schema = pa.schema([(name, types[kind]) for name, kind in columns.items()])
    count = 0
    with (
        replacing(path) as part,
        parquet.ParquetWriter(part, schema, compression="zstd") as writer,
    ):
        for rows in filter(None, batches):
            arrays = []
            for column, kind in zip(zip(*rows, strict=True), columns.values(), strict=True):
                values = list(column)
                if kind == "time":
                    values = [None if v is None else int(1000 * v) for v in values]
                arrays.append(pa.array(values, types[kind]))
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            count += len(rows)
    return count
