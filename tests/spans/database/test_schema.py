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


def test_importers_written_for_dnpcsql_insert_into_the_views(tmp_path: Path, simple: Path) -> None:
    """Spans with uuids of their own, and everything about them, beside what was imported."""
    db = sqlite3.connect(simple)
    known = db.execute("SELECT min(uuid) FROM span").fetchone()[0]
    for uuid, kind in (("a-1", "my.workflow"), ("b-2", "my.task")):
        db.execute("INSERT INTO span (uuid, type, note) VALUES (?, ?, ?)", (uuid, kind, "mine"))
    db.execute("INSERT INTO subspan VALUES ('a-1', 'b-2', '1', NULL)")
    db.execute("INSERT INTO facet (left_uuid, right_uuid, note) VALUES ('b-2', ?, 'is')", (known,))
    events = [
        ("1", "1795176000.25", "opened"),
        ("2", 1795176003, "done"),
        ("3", 1795176003, "done"),
    ]
    for uuid, time, kind in events:
        row = (uuid, "b-2", time, kind)
        db.execute("INSERT INTO event (uuid, span_uuid, time, type) VALUES (?, ?, ?, ?)", row)
    db.execute("INSERT OR REPLACE INTO span VALUES ('a-1', 'my.workflow', 'renamed')")
    db.commit()
    db.close()
    types = {row["type"]: (row["spans"], row["events"]) for row in spans.types(simple)}
    assert types["my.workflow"] == (1, 0)
    assert types["my.task"] == (1, 3)
    assert spans.between(simple, "opened", "done", root="my.workflow") == [
        {"start_s": 1795176000.25, "duration_s": 2.75}
    ]
    joined = "SELECT e.time FROM event e JOIN span s ON s.uuid = e.span_uuid WHERE s.type = ?"
    db = sqlite3.connect(simple)
    assert len(db.execute(joined, ("my.task",)).fetchall()) == 3
    assert db.execute("SELECT note FROM facet WHERE right_uuid = ?", (known,)).fetchall()[-1] == (
        "is",
    )
    db.close()


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("INSERT INTO event VALUES (1, 'gone', 1.0, 'x', NULL)", "must be inserted before it"),
        ("INSERT INTO event VALUES (1, 'a', 'soon', 'x', NULL)", "seconds since 1970"),
        ("INSERT INTO event VALUES (1, 'a', NULL, 'x', NULL)", "seconds since 1970"),
        ("INSERT INTO span VALUES (NULL, 'x', NULL)", "needs a uuid"),
        ("INSERT INTO span VALUES ('a', 'x', NULL)", "UNIQUE"),
        ("INSERT INTO subspan VALUES ('a', 'gone', 1, NULL)", "must be inserted before it"),
        ("INSERT INTO facet VALUES ('gone', 'a', NULL)", "must be inserted before it"),
    ],
)
def test_unsupported_inserts_are_refused(tmp_path: Path, statement: str, reason: str) -> None:
    """The statement says why, and nothing is stored."""
    connect(tmp_path / "db", write=True).close()
    db = sqlite3.connect(tmp_path / "db")
    db.execute("INSERT INTO span VALUES ('a', 'kind', NULL)")
    with pytest.raises(sqlite3.IntegrityError, match=reason):
        db.execute(statement)
    assert db.execute("SELECT count(*) FROM event_row").fetchone() == (0,)
    assert db.execute("SELECT count(*) FROM span_row").fetchone() == (1,)
    db.close()


def test_a_database_of_version_1_is_read_and_then_upgraded(tmp_path: Path, simple: Path) -> None:
    """Reading leaves it as it is; the next import makes it take inserts."""
    db = sqlite3.connect(simple)
    triggers = db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in triggers:
        db.execute(f"DROP TRIGGER {name}")
    db.executescript("DROP VIEW inserted_uuid; DROP INDEX span_row_inserted;"
                     "PRAGMA user_version = 1")  # fmt: skip
    db.close()
    types = spans.types(simple)
    assert len(triggers) == 4
    connect(simple, write=True).close()
    assert spans.types(simple) == types
    db = sqlite3.connect(simple)
    db.execute("INSERT INTO span VALUES ('a', 'kind', NULL)")
    db.close()


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
