"""Importing sources of any kind into a spans database."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from mlflow_perf.errors import MlflowPerfError, SpansError
from mlflow_perf.spans.database import cache
from mlflow_perf.spans.database.bind import bind_known
from mlflow_perf.spans.database.schema import DAMAGE, DEFAULT_DB, connect, name_damage
from mlflow_perf.spans.database.store import Progress, Store
from mlflow_perf.spans.importers.base import Importer
from mlflow_perf.spans.importers.local_time import read_time_zone
from mlflow_perf.spans.importers.registry import expand

# Between a fingerprint and the name of a time zone, and the name of this machine's.
_ZONE, _HERE = " @ ", "here"
# Rows arrive in the order of the tables, so few pages are needed at once.
_CACHE_KB = 24_000
# What importers may raise for a damaged source.
_DAMAGE = (*DAMAGE, OSError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of importing one source.

    Attributes:
        source: The file, folder or URI.
        importer: The name of the importer that took it.
        spans: How many spans were new.
        events: How many events were new.
        seconds: How long it took.
        unchanged: Whether it was skipped, as it has not changed since its last import.
        unread: How many lines or rows were not understood, by their wording.
        notes: What a user must know of the import, one sentence each.
    """

    source: str
    importer: str
    spans: int = 0
    events: int = 0
    seconds: float = 0.0
    unchanged: bool = False
    unread: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def import_sources(
    sources: Iterable[str | Path] | str | Path,
    db: str | Path = DEFAULT_DB,
    *,
    progress: Progress | None = None,
    time_zone: str = "",
) -> list[Imported]:
    """Import sources into a spans database, each recognised by itself.

    Each source is one transaction: if one fails, those before it are kept, and the next import
    continues there. Importing a source twice changes nothing.

    Args:
        sources: Files, folders, or MLflow runs (`runs:/<run id>`).
        db: The database; it is created if it does not exist.
        progress: Called with the current step and the share of it that is done.
        time_zone: The zone of local times whose source shows none, such as Parsl's monitoring
            database without the logs of its runs: `Europe/Vienna` or `+02:00`. Default: this
            machine's.

    Returns:
        The result of each source, in the order of import.

    Raises:
        SettingError: There is no such time zone.
        SpansError: A source cannot be read or is of no known kind, or `db` cannot be used.
    """
    zone = read_time_zone(time_zone) if time_zone else None
    paths = [sources] if isinstance(sources, str | Path) else list(sources)
    # First: a misspelt source must not leave an empty database behind.
    found = [(importer, path) for source in paths for importer, path in expand(Path(source))]
    with closing(connect(db, write=True)) as connection:
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
        connection.execute("PRAGMA temp_store = MEMORY")
        pieces = cache.EventPieces(connection)
        results = []
        for importer, path in found:
            store = Store(connection, progress=progress, pieces=pieces, time_zone=zone)
            results.append(_import(importer, path, store, pieces, time_zone))
        with name_damage(db):
            cache.update(connection)
    return results


def _import(
    importer: Importer, source: Path, store: Store, pieces: cache.EventPieces, time_zone: str
) -> Imported:
    """Import one source in one transaction, unless it has not changed since its last import.

    The fingerprint of a source contains the time zone that was assumed for it. A source that has
    grown keeps its zone; with another one, each of its events would be stored a second time.
    """
    db = store.db
    started = time.monotonic()
    query = "SELECT fingerprint FROM source_row WHERE importer = ? AND location = ?"
    try:
        location = str(source.resolve()) if source.exists() else str(source)
        fingerprint = _stamp(source) if source.is_file() else ""
        if source.is_dir():
            stamps = [_stamp(path) for path in sorted(source.rglob("*")) if path.is_file()]
            fingerprint = hashlib.sha256("\n".join(stamps).encode()).hexdigest()
        known = db.execute(query, (importer.name, location)).fetchone()
        before, _, zone_before = known[0].partition(_ZONE) if known else ("", "", "")
        if time_zone and zone_before not in ("", time_zone):
            raise SpansError(
                f"{source} was imported into this database with another time zone: import it into "
                "a new one (--db)."
            )
        if zone_before not in ("", _HERE):
            store.time_zone = read_time_zone(zone_before)
        if fingerprint and fingerprint == before:
            return Imported(str(source), importer.name, unchanged=True)
        db.execute("BEGIN IMMEDIATE")
        pieces.start()
        importer.load(source, store)
        bind_known(store)
        pieces.write()
        unread = json.dumps(store.unread) if store.unread else None
        if store.assumes_zone:
            fingerprint += _ZONE + (time_zone or zone_before or _HERE)
        db.execute(
            "INSERT INTO source_row (importer, location, fingerprint, imported_us, unread)"
            " VALUES (?, ?, ?, ?, ?) ON CONFLICT (importer, location) DO UPDATE SET"
            " fingerprint = excluded.fingerprint, imported_us = excluded.imported_us,"
            " unread = excluded.unread",
            (importer.name, location, fingerprint, time.time_ns() // 1000, unread),
        )
        db.execute("COMMIT")
    except BaseException as error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        # A failed statement may still hold the source; the connection is closed soon anyway.
        with suppress(sqlite3.Error):
            _detach(db)
        if isinstance(error, _DAMAGE) and not isinstance(error, MlflowPerfError):
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            hint = " If it is being written, try again." if isinstance(error, sqlite3.Error) else ""
            raise SpansError(f"{source} could not be imported: {reason}.{hint}") from error
        raise
    _detach(db)
    return Imported(
        str(source), importer.name, spans=store.spans, events=store.events, notes=store.notes,
        seconds=time.monotonic() - started, unread=dict(store.unread),
    )  # fmt: skip


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size}:{status.st_mtime_ns}"


def _detach(db: sqlite3.Connection) -> None:
    # SQLite cannot detach within a transaction, so importers cannot do it themselves.
    if any(name == "source" for _, name, _ in db.execute("PRAGMA database_list").fetchall()):
        db.execute("DETACH source")
