"""The spans database: opening it, making it, bringing an older one up to date.

May import errors. One SQLite file; the DDL stands in `schema.sql`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from mlflow_perf.errors import SpansError

__all__ = ["DEFAULT_DB", "SCHEMA_VERSION", "connect", "naming_damage", "reading", "source_uri"]

DEFAULT_DB = "spans.sqlite3"
SCHEMA_VERSION = 1
# "MPSP": tells our file from any other SQLite file, so that we never write into a user's own.
_APPLICATION_ID = 0x4D505350
_BUSY_SEC = 30.0
# What a database that is damaged, or was made by somebody else, makes its reader raise.
_DAMAGE = (sqlite3.Error, ValueError, TypeError, LookupError, OverflowError)
# From version N to N+1; a database of version N runs the scripts from index N on.
_MIGRATIONS: tuple[str, ...] = ("schema.sql",)


def connect(path: str | Path, *, write: bool = False) -> sqlite3.Connection:
    """Open a spans database.

    Args:
        path: The file. With `write` it is made when it is not there.
        write: Whether to import into it; otherwise it is opened read-only.

    Returns:
        A connection in autocommit mode.

    Raises:
        SpansError: The file is missing, is not a spans database, is of a newer version, or is
            locked.
    """
    path = Path(path)
    if not write and not path.is_file():
        raise SpansError(
            f"There is no spans database {path}: make one with `mlflow-perf spans import`."
        )
    if write and not path.absolute().parent.is_dir():
        raise SpansError(f"The folder of {path} does not exist: create it first.")
    uri = source_uri(path, mode="rwc" if write else "ro")
    try:
        db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_SEC)
    except sqlite3.Error as error:
        raise SpansError(f"{path} cannot be opened: {error}.") from error
    try:
        _prepare(db, path, write=write)
    except (sqlite3.Error, UnicodeError, MemoryError) as error:
        db.close()
        # Of damage in its schema SQLite says that it has no memory left.
        what = "it is damaged" if isinstance(error, MemoryError) else error
        raise SpansError(f"{path} cannot be used as a spans database: {what}.") from error
    except SpansError:
        db.close()
        raise
    return db


@contextmanager
def reading(db: str | Path | sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Give a connection for reading: the caller's own, or one for the block of a path.

    What the block reads is of one moment, whoever imports meanwhile.

    Raises:
        SpansError: As `connect`, or the block finds the database damaged.
    """
    if isinstance(db, sqlite3.Connection):
        with _one_moment(db):
            yield db
        return
    connection = connect(db)
    # What a hostile source had for text need not be UTF-8; it must not hide all the rest.
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    try:
        with naming_damage(db), _one_moment(connection):
            yield connection
    finally:
        connection.close()


@contextmanager
def _one_moment(db: sqlite3.Connection) -> Iterator[None]:
    ours = not db.in_transaction
    if ours:
        db.execute("BEGIN")
    try:
        yield
    finally:
        if ours and db.in_transaction:  # an error may have ended it
            db.execute("ROLLBACK")


@contextmanager
def naming_damage(path: str | Path) -> Iterator[None]:
    """Turn what a damaged database makes the block raise into an error that names it.

    Raises:
        SpansError: The database is damaged, or locked.
    """
    try:
        yield
    except SpansError:
        raise
    except _DAMAGE as error:
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            raise SpansError(f"{path} is being written by another program: try again.") from error
        raise SpansError(
            f"{path} is damaged ({type(error).__name__}: {error}): import its sources into a new"
            " one."
        ) from error


def source_uri(path: Path, *, mode: str = "ro") -> str:
    """Return the SQLite URI that opens `path` in `mode`, whatever characters it holds."""
    return f"file:{quote(str(path.absolute()))}?mode={mode}"


def _prepare(db: sqlite3.Connection, path: Path, *, write: bool) -> None:
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    application: int = db.execute("PRAGMA application_id").fetchone()[0]
    tables: int = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != _APPLICATION_ID and (tables or not write):
        raise SpansError(
            f"{path} is not a spans database of mlflow-perf: import it with "
            f"`mlflow-perf spans import {path} --db {DEFAULT_DB}`, or name another --db."
        )
    if version > SCHEMA_VERSION:
        raise SpansError(
            f"{path} has schema version {version}, newer than this mlflow-perf knows "
            f"({SCHEMA_VERSION}): upgrade mlflow-perf."
        )
    if version < SCHEMA_VERSION and write:
        _migrate(db)


def _migrate(db: sqlite3.Connection) -> None:
    # Within the lock, so that of two first imports one makes the tables and the other finds them.
    db.execute("BEGIN IMMEDIATE")
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    for script in _MIGRATIONS[version:]:
        for statement in _statements(files(__package__).joinpath(script).read_text("utf-8")):
            db.execute(statement)
    db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("COMMIT")


def _statements(script: str) -> Iterator[str]:
    # executescript() would commit first, and so leave half a schema behind a crash.
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
