"""The column cache: the arrays that analyses read, stored in the database beside the tables.

Each array is stored in pieces of about 100,000 rows: reading and writing hold one piece at a time,
and no piece exceeds SQLite's limit. An array's pieces count only if they have as many rows as its
table.
"""

from __future__ import annotations

import json
import sqlite3

import numpy as np

from mlflow_perf.spans.database import bulk
from mlflow_perf.spans.database.bulk import Ints

ARRAYS = {
    "span": ("span_row", "id", "type_id"),
    "event": ("event_row", "span_id", "time_us", "type_id"),
    "subspan": ("subspan_row", "super_id", "sub_id"),
    "facet": ("facet_row", "left_id", "right_id"),
}
"""Array name → its table and columns; the array is ordered by the first column."""

_PIECE_ROWS = 100_000
# Each header of a piece, and of a column in it, is padded to this size.
_HEADER_BYTES = 32


class EventPieces:
    """Writes the pieces of the events while an import stores them, so that they are not read again.

    This works while every event is new and belongs to a span behind all known ones, as in a first
    import. Otherwise `update` reads the table.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._version = -1
        self._last = -1
        self._whole = False
        self._waiting: list[Ints] = []

    def start(self) -> None:
        """Find the end of the stored pieces; call it at the beginning of the transaction."""
        version = _fetch_int(self._db, "PRAGMA data_version")
        if version != self._version:  # another process has written
            query = "SELECT coalesce(max(last), -1) FROM column_cache WHERE name = 'event'"
            self._version, self._last = version, _fetch_int(self._db, query)
            self._whole = _is_fresh(self._db, "event")

    def add(self, rows: Ints, *, new: int) -> None:
        """Add sorted columns of span, time and type, of which `new` events were not known."""
        if not new:
            return
        self._whole &= new == rows.shape[1] and int(rows[0, 0]) > self._last
        if self._whole:
            self._last = int(rows[0, -1])
            self._waiting.append(rows)
            if sum(table.shape[1] for table in self._waiting) >= _PIECE_ROWS:
                self.write()

    def write(self) -> None:
        """Store the waiting events; call it before the end of the transaction."""
        if self._waiting:
            _write_piece(self._db, "event", np.concatenate(self._waiting, axis=1))
            self._waiting.clear()


def update(db: sqlite3.Connection) -> None:
    """Bring the cache up to date with the tables, in a transaction of its own."""
    db.execute("BEGIN IMMEDIATE")
    for name, table in ARRAYS.items():
        if not _is_fresh(db, name):
            db.execute("DELETE FROM column_cache WHERE name = ?", (name,))
            for part in bulk.read_parts(db, *table):
                _write_piece(db, name, part)
    db.execute("COMMIT")


def read(db: sqlite3.Connection, name: str) -> Ints:
    """Return an array, one row for each column: from its pieces if they are fresh.

    Raises:
        ValueError: A piece is damaged.
    """
    table = ARRAYS[name]
    if not _is_fresh(db, name):
        return bulk.read(db, *table)
    query = "SELECT rows, data FROM column_cache WHERE name = ? ORDER BY last"
    array = np.empty((len(table) - 1, _count_rows(db, table[0])), dtype=np.int64)
    start = 0
    for rows, data in db.execute(query, (name,)):
        piece = array[:, start : start + rows]
        if json.loads(data[:_HEADER_BYTES]) != list(piece.shape):
            raise ValueError("a piece of the columns has another length than its row says")
        at = _HEADER_BYTES
        for column in piece:
            low, kind = data[at : at + _HEADER_BYTES].decode().split()
            at += _HEADER_BYTES
            values = np.frombuffer(data, dtype=np.dtype(kind), count=rows, offset=at)
            np.add(values, int(low), out=column, casting="unsafe", dtype=np.int64)
            at += values.nbytes
        start += rows
    return array


def _write_piece(db: sqlite3.Connection, name: str, piece: Ints) -> None:
    """Store a piece: its shape, then each column in the smallest type that holds its range."""
    parts = [json.dumps(piece.shape).encode().ljust(_HEADER_BYTES)]
    for column in piece:
        low = int(column.min())
        kind = np.min_scalar_type(int(column.max()) - low)
        parts.append(f"{low} {kind.str}".encode().ljust(_HEADER_BYTES))
        parts.append((column - low).astype(kind).tobytes())
    row = (name, int(piece[0, -1]), piece.shape[1], b"".join(parts))
    db.execute("INSERT INTO column_cache VALUES (?, ?, ?, ?)", row)


def _is_fresh(db: sqlite3.Connection, name: str) -> bool:
    cached = "SELECT coalesce(sum(rows), 0) FROM column_cache WHERE name = ?"
    return _fetch_int(db, cached, name) == _count_rows(db, ARRAYS[name][0])


def _count_rows(db: sqlite3.Connection, table: str) -> int:
    return _fetch_int(db, f"SELECT count(*) FROM {table}")  # noqa: S608 - names of ours


def _fetch_int(db: sqlite3.Connection, query: str, *parameters: str) -> int:
    return int(db.execute(query, parameters).fetchone()[0])
