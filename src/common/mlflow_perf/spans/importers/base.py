"""The interface of importers, and helpers that they share."""

from __future__ import annotations

import re
import sqlite3
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Protocol, runtime_checkable

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.schema import make_source_uri
from mlflow_perf.spans.database.store import Store

HEAD_BYTES = 1 << 16
MOST_MB = 1024
"""The largest file that is read into memory as a whole; logs and databases are not."""

SQLITE_MAGIC = b"SQLite format 3\0"
"""The first bytes of an SQLite file."""

_BUSY_SEC = 10.0


@runtime_checkable
class Importer(Protocol):
    """Recognises and imports one kind of source.

    Attributes:
        name: Short name for messages and the table of sources: `parsl-monitoring`.
    """

    name: str

    def recognises(self, source: Path, head: bytes) -> bool:
        """Return whether `source` is of this kind.

        Args:
            source: A file or a folder.
            head: The first 64 KiB of a file; empty for a folder.
        """
        ...

    def load(self, source: Path, store: Store) -> None:
        """Import `source` into the store, which skips rows that it already has.

        The source is opened for reading only. Lines or rows that are not understood are counted
        with `store.not_read`.

        Raises:
            SpansError: The source cannot be read.
        """
        ...


def read_head(source: Path) -> bytes:
    """Return the first 64 KiB of a file; nothing for a folder."""
    if not source.is_file():
        return b""
    with source.open("rb") as file:
        return file.read(HEAD_BYTES)


def list_tables(source: Path) -> set[str]:
    """Return the names of the tables of an SQLite file.

    Raises:
        SpansError: It is damaged, locked, or its writer crashed.
    """
    try:
        db = sqlite3.connect(make_source_uri(source), uri=True, timeout=_BUSY_SEC)
        try:
            rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        finally:
            db.close()
    except (sqlite3.Error, UnicodeError) as error:
        raise SpansError(
            f"{source} cannot be read as an SQLite database: {error}. If it is being written, try "
            "again; if its writer crashed, open it once with `sqlite3`, which repairs it."
        ) from error
    return {name for (name,) in rows}


@cache
def read_statements(file: str) -> dict[str, str]:
    """Return the statements of one of our SQL files by the names in the comments above them."""
    text = files(__package__).joinpath(file).read_text("utf-8")
    named = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    texts = (statement.strip().removesuffix(";") for statement in named[1::2])
    return dict(zip(named[::2], texts, strict=True))
