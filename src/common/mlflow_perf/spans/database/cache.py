"""The columns that analyses read, kept in the database beside the tables: written, and read back.

May import spans.bulk. Each array stands in pieces of some hundred thousand rows, so that neither
writing nor reading holds more than one of them besides, and none outgrows what SQLite takes. What
the pieces hold counts only while they have as many rows as the table.
"""

from __future__ import annotations

import json
import sqlite3

import numpy as np

from mlflow_perf.spans.database import bulk
from mlflow_perf.spans.database.bulk import Ints

__all__ = ["ARRAYS", "EventPieces", "read", "update"]

ARRAYS = {
    "span": ("span_row", "id", "type_id"),
    "event": ("event_row", "span_id", "time_us", "type_id"),
    "subspan": ("subspan_row", "super_id", "sub_id"),
    "facet": ("facet_row", "left_id", "right_id"),
}
"""The name of each array, its table, and its columns, in the order of the first."""

_PIECE_ROWS = 100_000


class EventPieces:
    """Writes the pieces of the events while they are stored, so that nobody reads them again.

    That works where every event is new and of a span behind all that are known, as in a first
    import; elsewhere `update` reads the table.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._version = -1
        self._last = -1
        self._whole = False
        self._waiting: list[Ints] = []

    def start(self) -> None:
        """Find out where the pieces end; call it at the transaction's beginning."""
        (version,) = self._db.execute("PRAGMA data_version").fetchone()
        if version == self._version:
            return  # nobody else has written: what is known holds
        query = "SELECT max(last) FROM column_cache WHERE name = 'event'"
        (last,) = self._db.execute(query).fetchone()
        self._version, self._last = version, -1 if last is None else last
        self._whole = _is_fresh(self._db, "event")

    def add(self, rows: Ints, *, new: int) -> None:
        """Take events: sorted columns of span, time and type, of which `new` were not known."""
        if not new:
            return
        self._whole &= new == rows.shape[1] and int(rows[0, 0]) > self._last
        if self._whole:
            self._last = int(rows[0, -1])
            self._waiting.append(rows)
            if sum(table.shape[1] for table in self._waiting) >= _PIECE_ROWS:
                self.write()

    def write(self) -> None:
        """Store what waits; call it before the transaction's end."""
        if self._waiting:
            _write(self._db, "event", np.concatenate(self._waiting, axis=1))
            self._waiting.clear()


def update(db: sqlite3.Connection) -> None:
    """Bring the pieces up to the present tables, in a transaction of its own."""
    db.execute("BEGIN IMMEDIATE")
    for name, table in ARRAYS.items():
        if not _is_fresh(db, name):
            db.execute("DELETE FROM column_cache WHERE name = ?", (name,))
            for part in bulk.read_parts(db, *table):
                _write(db, name, part)
    db.execute("COMMIT")


def read(db: sqlite3.Connection, name: str) -> Ints:
    """Return an array, a row for each column: from its pieces where they are up to date.

    Raises:
        ValueError: A piece is damaged.
    """
    table = ARRAYS[name]
    if not _is_fresh(db, name):
        return bulk.read(db, *table)
    query = "SELECT rows, data FROM column_cache WHERE name = ? ORDER BY last"
    array = np.empty((len(table) - 1, _count(db, table[0])), dtype=np.int64)
    at = 0
    for rows, data in db.execute(query, (name,)):
        _unpack(data, array[:, at : at + rows])
        at += rows
    return array


def _write(db: sqlite3.Connection, name: str, piece: Ints) -> None:
    row = (name, int(piece[0, -1]), piece.shape[1], _packed(piece))
    db.execute("INSERT INTO column_cache VALUES (?, ?, ?, ?)", row)


def _is_fresh(db: sqlite3.Connection, name: str) -> bool:
    query = "SELECT coalesce(sum(rows), 0) FROM column_cache WHERE name = ?"
    return bool(db.execute(query, (name,)).fetchone()[0] == _count(db, ARRAYS[name][0]))


def _count(db: sqlite3.Connection, table: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - names of ours


def _packed(array: Ints) -> bytes:
    """Return an array as bytes: its width and length, then each column in as few as it needs."""
    parts = [json.dumps(array.shape).encode().ljust(32)]
    for column in array:
        low = int(column.min())
        kind = np.min_scalar_type(int(column.max()) - low)
        parts.append(f"{low} {kind.str}".encode().ljust(32))
        parts.append((column - low).astype(kind).tobytes())
    return b"".join(parts)


def _unpack(data: bytes, array: Ints) -> None:
    """Fill an array with what `_packed` made of one."""
    if json.loads(data[:32]) != list(array.shape):
        raise ValueError("a piece of the columns has another length than is said of it")
    width, length = array.shape
    at = 32
    for row in range(width):
        low, kind = data[at : at + 32].decode().split()
        values = np.frombuffer(data, dtype=np.dtype(kind), count=length, offset=at + 32)
        array[row] = values
        array[row] += int(low)
        at += 32 + values.nbytes
