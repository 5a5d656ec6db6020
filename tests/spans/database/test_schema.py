"""Opening, creating and protecting the database."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf import spans
from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database import cache, schema
from mlflow_perf.spans.database.schema import SCHEMA_VERSION, connect


@pytest.fixture
def simple(make: Any, tmp_path: Path, spans_of: Callable[..., Path]) -> Path:
    """A database with one run."""
    return spans_of(make.simple_monitoring(tmp_path / "monitoring.db"))


def test_a_new_database_has_the_version(tmp_path: Path) -> None:
    """The file records the schema's version; opening it again changes nothing."""
    for _ in range(2):
        db = connect(tmp_path / "db", write=True)
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        db.close()


def test_a_missing_database_is_not_made_by_reading(tmp_path: Path) -> None:
    """Reading a missing file fails with a hint how to make one, and creates no file."""
    with pytest.raises(SpansError, match="spans import"):
        spans.types(tmp_path / "none.db")
    assert list(tmp_path.iterdir()) == []


def test_a_newer_database_is_refused(simple: Path) -> None:
    """A file of a newer version is refused."""
    db = sqlite3.connect(simple)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()
    with pytest.raises(SpansError, match="upgrade mlflow-perf"):
        spans.types(simple)


def test_a_users_own_database_is_never_written_to(make: Any, tmp_path: Path) -> None:
    """`--db` on a file that is not ours is refused; the file stays as it was, byte for byte."""
    path = make.simple_monitoring(tmp_path / "monitoring.db")
    before = path.read_bytes()
    with pytest.raises(SpansError, match="not a spans database"):
        spans.import_sources(path, path)
    with pytest.raises(SpansError, match="not a spans database"):
        spans.types(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "data", [b"", b"not a database at all", b"SQLite format 3\0" + b"\xff" * 200]
)
def test_a_file_that_is_no_database(tmp_path: Path, data: bytes) -> None:
    """Garbage as a database, or as a source, is one line that names the file."""
    path = tmp_path / "garbage.db"
    path.write_bytes(data)
    uses: tuple[Callable[[], object], ...] = (
        lambda: spans.types(path),
        lambda: spans.import_sources(path, tmp_path / "db"),
    )
    for use in uses:
        with pytest.raises(SpansError, match=r"garbage\.db") as caught:
            use()
        assert "\n" not in str(caught.value)


def test_a_damaged_schema_is_one_line(tmp_path: Path) -> None:
    """SQLite reports some damaged schemas as out of memory; found by fuzzing."""
    damaged = Path(__file__).parents[1] / "data" / "damaged_schema.sqlite3.gz"
    (tmp_path / "db").write_bytes(gzip.decompress(damaged.read_bytes()))
    with pytest.raises(SpansError, match=r"cannot be used as a spans database: .+\."):
        spans.types(tmp_path / "db")


def test_other_tables_may_live_beside(simple: Path) -> None:
    """A user's own table in the file is left alone and can be joined."""
    spans.sql(simple, "CREATE TABLE mine (task INTEGER, owner TEXT)", write=True)
    spans.sql(simple, "INSERT INTO mine VALUES (1, 'me')", write=True)
    rows = spans.sql(
        simple,
        "SELECT owner, i.name FROM mine JOIN interval i ON i.key = mine.task"
        " AND i.type = 'parsl.monitoring.task'",
    )
    assert rows == [{"owner": "me", "name": "app"}]


def test_a_read_sees_one_snapshot(
    make: Any, simple: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import that ends between two tables' reading is not taken for damage."""
    source = make.simple_monitoring(tmp_path / "more.db", run="2" * 36)
    before = spans.types(simple)
    read = cache.read
    refused: list[Exception] = []

    def read_during_an_import(db: sqlite3.Connection, name: str) -> Any:
        found = read(db, name)
        if name == "span":
            try:
                spans.import_sources(source, simple)
            except SpansError as error:
                refused.append(error)
        return found

    monkeypatch.setattr(cache, "read", read_during_an_import)
    monkeypatch.setattr(schema, "_BUSY_SEC", 0.0)
    assert spans.types(simple) == before
    assert refused
    monkeypatch.undo()
    assert not spans.import_sources(source, simple)[0].unchanged


def test_a_database_that_another_writes_is_not_called_damaged(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that is held too long is an error that says to try again."""
    source, db = make.simple_monitoring(tmp_path / "monitoring.db"), tmp_path / "db"
    spans.import_sources(source, db)
    monkeypatch.setattr(schema, "_BUSY_SEC", 0.0)
    other = sqlite3.connect(db, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    task, attempt = "parsl.monitoring.task", "parsl.monitoring.try"
    writes: tuple[Callable[[], object], ...] = (
        lambda: spans.import_sources(source, db),
        lambda: spans.bind(db, task, attempt),
    )
    try:
        for write in writes:
            with pytest.raises(SpansError, match="another program: try again"):
                write()
    finally:
        other.close()
    assert spans.bind(db, task, attempt) >= 0
