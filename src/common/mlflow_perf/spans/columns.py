"""The database's events and relations as numpy arrays, and the closure of spans below a root.

May import spans.schema. The arrays stand in the database too, written once after an import, so
that an analysis of a million events starts in milliseconds.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

__all__ = ["Columns", "Ints", "Streams", "columns_of", "write_cache"]

Ints = npt.NDArray[np.int64]

# The name of each array, its table, and its columns, in the order of the first.
_ARRAYS = {
    "span": ("span_row", "id", "type_id"),
    "event": ("event_row", "span_id", "time_us", "type_id"),
    "subspan": ("subspan_row", "super_id", "sub_id"),
    "facet": ("facet_row", "left_id", "right_id"),
}
_COUNTS = (
    "SELECT (SELECT count(*) FROM span_row), (SELECT count(*) FROM event_row),"
    " (SELECT count(*) FROM subspan_row), (SELECT count(*) FROM facet_row)"
)
_STAMP = "stamp"
# A time takes 17 characters, and SQLite's strings end at 1e9.
_PART_ROWS = 5_000_000


@dataclass(frozen=True)
class Columns:
    """The whole database as arrays.

    Attributes:
        span: Number of each span, ascending.
        span_type: Number of its type's name.
        event_span: Number of each event's span; events are in the order of span, then time.
        event_time: Its Unix time in microseconds.
        event_type: Number of its type's name.
        superspan: The upper end of each subspan relation.
        subspan: Its lower end.
        left: One end of each facet.
        right: The other.
        names: The names by their number.
    """

    span: Ints
    span_type: Ints
    event_span: Ints
    event_time: Ints
    event_type: Ints
    superspan: Ints
    subspan: Ints
    left: Ints
    right: Ints
    names: dict[int, str]

    def number(self, name: str) -> int:
        """Return the number of a name, or -1 where the database does not know it."""
        return self._numbers.get(name, -1)

    def spans_of(self, span_type: str) -> Ints:
        """Return the numbers of the spans of a type."""
        found: Ints = self.span[self.span_type == self.number(span_type)]
        return found

    def types_of(self, spans: Ints) -> Ints:
        """Return the number of the type's name of each span."""
        found: Ints = self.span_type[np.searchsorted(self.span, spans)]
        return found

    def closure(self, roots: Ints) -> tuple[Ints, Ints]:
        """Return every span that belongs to each root: down subspans, both ways over facets.

        A span that is reached in several ways counts once for each root; cycles end.

        Args:
            roots: Numbers of the root spans.

        Returns:
            Two arrays of the same length, the position of the root in `roots` and the number of
            the span; a root's own span is the first of it, then what is nearest.
        """
        sources, targets = self._edges
        width = int(self.span[-1]) + 1 if len(self.span) else 1
        root, span = np.arange(len(roots)), roots
        found = [(root, span)]
        seen = np.sort(root * width + span)
        while len(span):
            root, span = _step(root, span, sources, targets)
            keys = np.unique(root * width + span)
            keys = keys[~_contains(seen, keys)]
            root, span = keys // width, keys % width
            found.append((root, span))
            seen = np.union1d(seen, keys) if len(keys) else seen
        return np.concatenate([r for r, _ in found]), np.concatenate([s for _, s in found])

    def streams(self, root_type: str) -> Streams:
        """Return the events of each span of a type and of all that belongs to it, in time order."""
        roots = self.spans_of(root_type)
        root, span = self.closure(roots)
        first = np.searchsorted(self.event_span, span, side="left")
        count = np.searchsorted(self.event_span, span, side="right") - first
        event = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
        root = np.repeat(root, count)
        time = self.event_time[event]
        order = _by_root_and_time(root, time)
        event, root, time = event[order], root[order], time[order]
        return Streams(self, roots, root, time, self._kinds[event])

    @cached_property
    def kinds(self) -> list[tuple[str, str]]:
        """What happened where, by its code: `(span type, event type)`."""
        pairs = self._kind_keys
        return [(self.names[int(k >> 32)], self.names[int(k & 0xFFFFFFFF)]) for k in pairs]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in self.names.items()}

    @cached_property
    def _pair_of_event(self) -> Ints:
        types = self.types_of(self.event_span)
        return (types << 32) | self.event_type

    @cached_property
    def _kind_keys(self) -> Ints:
        return np.unique(self._pair_of_event)

    @cached_property
    def _kinds(self) -> Ints:
        return np.searchsorted(self._kind_keys, self._pair_of_event)

    @cached_property
    def _edges(self) -> tuple[Ints, Ints]:
        sources = np.concatenate([self.superspan, self.left, self.right])
        targets = np.concatenate([self.subspan, self.right, self.left])
        order = np.argsort(sources, kind="stable")
        return sources[order], targets[order]


@dataclass(frozen=True)
class Streams:
    """The events of each root in the order of time.

    Attributes:
        columns: Where they come from.
        roots: Numbers of the root spans.
        root: Position in `roots` of each event's root, ascending.
        time: Unix microseconds of each event.
        kind: Its code in `columns.kinds`.
    """

    columns: Columns
    roots: Ints
    root: Ints
    time: Ints
    kind: Ints

    @cached_property
    def starts(self) -> Ints:
        """Where each root that has events begins in the arrays."""
        return np.flatnonzero(np.diff(self.root, prepend=-1))


def columns_of(db: sqlite3.Connection) -> Columns:
    """Return the arrays: from the cache where it is up to date, else from the tables."""
    names = dict(db.execute("SELECT id, text FROM string"))
    blobs = dict(db.execute("SELECT name, data FROM column_cache"))
    stamp = blobs.get(_STAMP)
    if stamp is not None and json.loads(stamp) == _counts(db):
        arrays = {name: _unpacked(blobs[name]) for name in _ARRAYS}
    else:
        arrays = {name: _read(db, *table) for name, table in _ARRAYS.items()}
    span, event, subspan, facet = (arrays[name] for name in _ARRAYS)
    time, kind = event[1], event[2]
    return Columns(
        span[0], span[1], event[0], time, kind, subspan[0], subspan[1], facet[0], facet[1], names
    )


def write_cache(db: sqlite3.Connection) -> None:
    """Store the arrays of the present tables, in a transaction of its own."""
    db.execute("BEGIN IMMEDIATE")
    for name, table in _ARRAYS.items():
        db.execute("REPLACE INTO column_cache VALUES (?, ?)", (name, _packed(_read(db, *table))))
    stamp = json.dumps(_counts(db))
    db.execute("REPLACE INTO column_cache VALUES (?, ?)", (_STAMP, stamp))
    db.execute("COMMIT")


def _counts(db: sqlite3.Connection) -> list[int]:
    return list(db.execute(_COUNTS).fetchone())


def _read(db: sqlite3.Connection, table: str, *columns: str) -> Ints:
    """Return columns of whole numbers of a table, one row of the array for each.

    The numbers pass as text that SQLite joins and numpy parses: a third of the time of a million
    tuples.
    """
    key, joined = columns[0], ", ".join(f"group_concat({c})" for c in columns)
    bounds = f"SELECT min({key}), max({key}), count(*) FROM {table}"  # noqa: S608 - names of ours
    low, high, rows = db.execute(bounds).fetchone()
    step = (high - low) // (rows // _PART_ROWS + 1) + 1 if rows else 1
    parts = [np.zeros((len(columns), 0), dtype=np.int64)]
    for start in range(low or 0, (high or -1) + 1, step):
        # Each table is kept in the order of its key, and read in it: sorting takes twice as long.
        (texts,) = db.execute(
            f"SELECT {joined} FROM {table} WHERE {key} >= ? AND {key} < ?",  # noqa: S608 - names of ours
            (start, start + step),
        )
        if texts[0]:
            parts.append(np.stack([np.fromstring(t, dtype=np.int64, sep=",") for t in texts]))
    return np.concatenate(parts, axis=1)


def _packed(array: Ints) -> bytes:
    """Return an array as bytes: its width and length, then each column in as few as it needs."""
    parts = [json.dumps(array.shape).encode().ljust(32)]
    for column in array:
        low = int(column.min()) if len(column) else 0
        span = int(column.max()) - low if len(column) else 0
        kind = np.min_scalar_type(span)
        parts.append(f"{low} {kind.str}".encode().ljust(32))
        parts.append((column - low).astype(kind).tobytes())
    return b"".join(parts)


def _unpacked(data: bytes) -> Ints:
    width, length = json.loads(data[:32])
    # Before so much memory is asked for: each number takes a byte at the least.
    if width * length > len(data):
        raise ValueError("a column is longer than its bytes")
    array = np.empty((width, length), dtype=np.int64)
    at = 32
    for row in range(width):
        low, kind = data[at : at + 32].decode().split()
        values = np.frombuffer(data, dtype=np.dtype(kind), count=length, offset=at + 32)
        array[row] = values
        array[row] += int(low)
        at += 32 + values.nbytes
    return array


def _step(root: Ints, span: Ints, sources: Ints, targets: Ints) -> tuple[Ints, Ints]:
    """Follow every relation that starts at one of the spans."""
    first = np.searchsorted(sources, span, side="left")
    count = np.searchsorted(sources, span, side="right") - first
    edge = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
    return np.repeat(root, count), targets[edge]


def _contains(ordered: Ints, values: Ints) -> npt.NDArray[np.bool_]:
    place = np.searchsorted(ordered, values)
    place[place == len(ordered)] = 0
    found: npt.NDArray[np.bool_] = ordered[place] == values
    return found


def _by_root_and_time(root: Ints, time: Ints) -> Ints:
    """Return the stable order by root, then time; ties stay as they are, a root's own first."""
    if not len(root):
        return np.zeros(0, dtype=np.int64)
    low = int(time.min())
    bits = (int(time.max()) - low).bit_length()
    if bits + int(root.max()).bit_length() < 63:
        return np.argsort((root << bits) | (time - low), kind="stable")
    return np.lexsort((time, root))
