"""Opening the spans database: one SQLite file, whose tables `schema.sql` defines."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from mlflow_perf.errors import SpansError

Database = str | Path | sqlite3.Connection
"""A spans database: its path, or an open connection to it."""

DEFAULT_DB = "spans.sqlite3"
SCHEMA_VERSION = 2
# "MPSP" in the file's header: we never write into an SQLite file of someone else.
_APPLICATION_ID = 0x4D505350
_BUSY_SEC = 30.0
DAMAGE = (sqlite3.Error, ValueError, TypeError, LookupError, ArithmeticError)
"""The errors that reading a damaged file, or a file of another kind, may raise."""

# Script N brings a database of version N to version N + 1.
_MIGRATIONS: tuple[str, ...] = ("schema.sql", "inserts.sql")


def connect(path: str | Path, *, write: bool = False) -> sqlite3.Connection:
    """Open a spans database.

    Args:
        path: The file. With `write` it is created if it does not exist.
        write: Whether to open it for importing; otherwise it is opened read-only.

    Returns:
        A connection in autocommit mode.

    Raises:
        SpansError: The file is missing, is not a spans database, has a newer version, or is
            locked.
    """
    path = Path(path)
    if not write and not path.is_file():
        raise SpansError(
            f"There is no spans database {path}: make one with `mlflow-perf spans import`."
        )
    if write and not path.absolute().parent.is_dir():
        raise SpansError(f"The folder of {path} does not exist: create it first.")
    uri = make_source_uri(path, mode="rwc" if write else "ro")
    try:
        db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_SEC)
    except sqlite3.Error as error:
        raise SpansError(f"{path} cannot be opened: {error}.") from error
    try:
        _check_version(db, path, write=write)
    except BaseException as error:
        db.close()
        if not isinstance(error, sqlite3.Error | UnicodeError | MemoryError):
            raise
        # SQLite reports some damaged schemas as "out of memory".
        reason = "it is damaged" if isinstance(error, MemoryError) else error
        raise SpansError(f"{path} cannot be used as a spans database: {reason}.") from error
    return db


def _check_version(db: sqlite3.Connection, path: Path, *, write: bool) -> None:
    """Refuse a database that is not ours or is newer; create or upgrade its tables."""
    version, application, tables = db.execute(
        "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master)"
        " FROM pragma_user_version, pragma_application_id"
    ).fetchone()
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
    if version == SCHEMA_VERSION or not write:
        return
    # Two first imports at once: the lock lets one create the tables and the other find them.
    db.execute("BEGIN IMMEDIATE")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    for script in _MIGRATIONS[version:]:
        # executescript() would commit first: a crash could then leave half a schema.
        statement = ""
        for line in files(__package__).joinpath(script).read_text("utf-8").splitlines(True):
            statement += line
            if sqlite3.complete_statement(statement):
                db.execute(statement)
                statement = ""
    db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("COMMIT")


@contextmanager
def open_for_reading(db: Database) -> Iterator[sqlite3.Connection]:
    """Give a connection for one consistent read: the caller's own, or a new one for a path.

    The whole block sees one snapshot, even while another process imports.

    Raises:
        SpansError: As for `connect`, or the block finds the database damaged.
    """
    if isinstance(db, sqlite3.Connection):
        with _snapshot(db):
            yield db
        return
    connection = connect(db)
    # Text from a hostile source need not be UTF-8; the other rows must stay readable.
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    try:
        with name_damage(db), _snapshot(connection):
            yield connection
    finally:
        connection.close()


@contextmanager
def _snapshot(db: sqlite3.Connection) -> Iterator[None]:
    ours = not db.in_transaction
    if ours:
        db.execute("BEGIN")
    try:
        yield
    finally:
        if ours and db.in_transaction:  # an error may have ended it
            db.execute("ROLLBACK")


@contextmanager
def name_damage(path: str | Path) -> Iterator[None]:
    """Turn the errors that a damaged database causes into an error that names the file.

    Raises:
        SpansError: The database is damaged, or locked.
    """
    try:
        yield
    except SpansError:
        raise
    except DAMAGE as error:
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            raise SpansError(f"{path} is being written by another program: try again.") from error
        raise SpansError(
            f"{path} is damaged ({type(error).__name__}: {error}): import its sources into a new"
            " one."
        ) from error


def make_source_uri(path: Path, *, mode: str = "ro") -> str:
    """Return the SQLite URI that opens `path` in `mode`, with special characters quoted."""
    return f"file:{quote(str(path.absolute()))}?mode={mode}"
