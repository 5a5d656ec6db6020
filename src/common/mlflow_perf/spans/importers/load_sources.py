"""Importing sources of any kind into a spans database.

May import errors, spans.schema, spans.store, spans.cache, spans.importers.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mlflow_perf.errors import MlflowPerfError, SpansError
from mlflow_perf.spans.database import cache
from mlflow_perf.spans.database.bind import bind_known
from mlflow_perf.spans.database.schema import DEFAULT_DB, connect, name_damage
from mlflow_perf.spans.database.store import Progress, Store
from mlflow_perf.spans.importers.base import Importer
from mlflow_perf.spans.importers.registry import expand

__all__ = ["Imported", "import_sources"]


# Rows come in the order of the tables, so that few of their pages are at hand at once.
_CACHE_KB = 24_000
# What a source that is damaged, or not what it says, makes its importer raise.
_DAMAGE = (
    sqlite3.Error,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


@dataclass(frozen=True, slots=True)
class Imported:
    """What one source gave.

    Attributes:
        source: The file, folder or URI.
        importer: The name of the importer that took it.
        spans: How many spans were new.
        events: How many events were new.
        seconds: How long it took.
        unchanged: Whether it was left out because it has not changed since it was imported.
        unread: How many lines or rows were not understood, by their wording.
    """

    source: str
    importer: str
    spans: int = 0
    events: int = 0
    seconds: float = 0.0
    unchanged: bool = False
    unread: dict[str, int] = field(default_factory=dict)


def import_sources(
    sources: Iterable[str | Path] | str | Path,
    db: str | Path = DEFAULT_DB,
    *,
    progress: Progress | None = None,
) -> list[Imported]:
    """Import sources into a spans database, each recognised by itself.

    Each source is one transaction: where one fails, those before it are kept, and importing all
    again takes up where it stopped. A source that is imported twice changes nothing.

    Args:
        sources: Files, folders, or MLflow runs (`runs:/<run id>`).
        db: The database; it is made when it is not there.
        progress: Told what is being read and what share of it is done.

    Returns:
        What each source gave, in the order they were imported.

    Raises:
        SpansError: A source cannot be read or is of no known kind, or `db` cannot be used.
    """
    paths = [sources] if isinstance(sources, str | Path) else list(sources)
    # Before the database is made: a misspelt source must not leave an empty one behind.
    found = [(importer, path) for source in paths for importer, path in expand(Path(source))]
    connection = connect(db, write=True)
    try:
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
        connection.execute("PRAGMA temp_store = MEMORY")
        pieces = cache.EventPieces(connection)
        results = []
        for importer, path in found:
            store = Store(connection, progress=progress, pieces=pieces)
            results.append(_import(importer, path, store, pieces))
        with name_damage(db):
            cache.update(connection)
    finally:
        connection.close()
    return results


def _import(importer: Importer, source: Path, store: Store, pieces: cache.EventPieces) -> Imported:
    db = store.db
    started = time.monotonic()
    try:
        fingerprint = _fingerprint(source)
        if fingerprint and fingerprint == _known_fingerprint(db, importer, source):
            return Imported(str(source), importer.name, unchanged=True)
        db.execute("BEGIN IMMEDIATE")
        pieces.start()
        importer.load(source, store)
        bind_known(store)
        pieces.write()
        _note(importer, source, fingerprint, store)
        db.execute("COMMIT")
    except BaseException as error:
        _undo(db)
        if isinstance(error, _DAMAGE) and not isinstance(error, MlflowPerfError):
            raise SpansError(f"{source} could not be imported: {_one_line(error)}.") from error
        raise
    _detach(db)
    return Imported(
        source=str(source),
        importer=importer.name,
        spans=store.spans,
        events=store.events,
        seconds=time.monotonic() - started,
        unread=dict(store.unread),
    )


def _one_line(error: BaseException) -> str:
    """Return what an error says, on one line, with its kind where it says little."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}"


def _note(importer: Importer, source: Path, fingerprint: str, store: Store) -> None:
    store.db.execute(
        "INSERT INTO source_row (importer, location, fingerprint, imported_us, unread)"
        " VALUES (?, ?, ?, ?, ?) ON CONFLICT (importer, location) DO UPDATE SET"
        " fingerprint = excluded.fingerprint, imported_us = excluded.imported_us,"
        " unread = excluded.unread",
        (
            importer.name,
            _location(source),
            fingerprint,
            time.time_ns() // 1000,
            json.dumps(store.unread) if store.unread else None,
        ),
    )


def _known_fingerprint(db: sqlite3.Connection, importer: Importer, source: Path) -> str | None:
    row = db.execute(
        "SELECT fingerprint FROM source_row WHERE importer = ? AND location = ?",
        (importer.name, _location(source)),
    ).fetchone()
    return None if row is None else str(row[0])


def _location(source: Path) -> str:
    return str(source.resolve()) if source.exists() else str(source)


def _fingerprint(source: Path) -> str:
    """Return what changes when a file, or a file in a folder, changes; nothing for a URI."""
    if source.is_file():
        return _stamp(source)
    if not source.is_dir():
        return ""
    stamps = [_stamp(path) for path in sorted(source.rglob("*")) if path.is_file()]
    return hashlib.sha256("\n".join(stamps).encode()).hexdigest()


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size}:{status.st_mtime_ns}"


def _undo(db: sqlite3.Connection) -> None:
    if db.in_transaction:
        db.execute("ROLLBACK")
    # A statement that failed may still hold the source; the connection closes soon anyway.
    with suppress(sqlite3.Error):
        _detach(db)


def _detach(db: sqlite3.Connection) -> None:
    # SQLite detaches outside a transaction only, so an importer cannot do it itself.
    attached = [name for _, name, _ in db.execute("PRAGMA database_list") if name == "source"]
    for name in attached:
        db.execute(f"DETACH {name}")
