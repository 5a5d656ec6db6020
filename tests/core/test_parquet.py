"""Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.core.parquet import write_parquet

parquet = pytest.importorskip("pyarrow.parquet")
COLUMNS = {"id": "integer", "name": "text", "kind": "word", "at": "time", "value": "number"}


def test_batches_become_one_table(tmp_path: Path) -> None:
    """Rows of all batches are in the file; a missing value is null, and a time is in UTC."""
    rows: list[list[Any]] = [[1, "a", "k", 0.5, 2.0], [2, None, "k", None, None]]
    assert write_parquet(tmp_path / "t.parquet", COLUMNS, [rows, [], rows[:1]]) == 3
    table = parquet.read_table(tmp_path / "t.parquet")
    assert table["id"].to_pylist() == [1, 2, 1]
    assert table["name"].to_pylist() == ["a", None, "a"]
    assert str(table["at"][0].as_py()) == "1970-01-01 00:00:00.500000+00:00"
    assert [str(field.type) for field in table.schema][3:] == ["timestamp[ms, tz=UTC]", "double"]


def test_a_failure_leaves_the_older_file(tmp_path: Path) -> None:
    """The file is replaced only when all rows are written; no part of it is left behind."""
    file = tmp_path / "t.parquet"
    write_parquet(file, COLUMNS, [])

    def fail() -> Iterator[Any]:
        yield [[1, "a", "k", 0.5, 2.0]]
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_parquet(file, COLUMNS, fail())
    assert parquet.read_table(file).num_rows == 0
    assert [one.name for one in tmp_path.iterdir()] == ["t.parquet"]
