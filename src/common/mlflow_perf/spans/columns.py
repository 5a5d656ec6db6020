"""The database's events and relations as numpy arrays, and the closure of spans below a root.

May import spans.bulk. The arrays stand in the database too, written once after an import, so
that an analysis of a million events starts in milliseconds.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mlflow_perf.spans import bulk
from mlflow_perf.spans.bulk import Ints

__all__ = ["Columns", "Ints", "Streams", "cached_events", "columns_of", "write_cache"]

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
        found: Ints = self._type_by_span[spans]
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
            keys = bulk.distinct(root * width + span)
            keys = keys[~_contains(seen, keys)]
            root, span = keys // width, keys % width
            found.append((root, span))
            if len(keys):
                seen = np.concatenate([seen, keys])
                seen.sort(kind="stable")  # of two runs that are sorted: nearly for nothing
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
        count = len(self._type_numbers)
        pairs = [divmod(pair, count) for pair in self._pairs.tolist()]
        numbers = self._type_numbers.tolist()
        return [(self.names[numbers[span]], self.names[numbers[event]]) for span, event in pairs]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in self.names.items()}

    @cached_property
    def _type_by_span(self) -> Ints:
        table = np.zeros(int(self.span[-1]) + 1 if len(self.span) else 1, dtype=np.int64)
        table[self.span] = self.span_type
        return table

    @cached_property
    def _type_numbers(self) -> Ints:
        """The numbers of the names that are types, ascending."""
        size = 1 + max(int(self.span_type.max(initial=0)), int(self.event_type.max(initial=0)))
        used = np.bincount(self.span_type, minlength=size)
        return np.flatnonzero(used + np.bincount(self.event_type, minlength=size))

    @cached_property
    def _pair_of_event(self) -> Ints:
        # Looked up in short tables: to search a million in a sorted array takes ten times as long.
        place = np.zeros(int(self._type_numbers.max(initial=0)) + 1, dtype=np.int64)
        place[self._type_numbers] = np.arange(len(self._type_numbers))
        by_span = place[self._type_by_span] * len(self._type_numbers)
        return by_span[self.event_span] + place[self.event_type]

    @cached_property
    def _pairs(self) -> Ints:
        """The pairs of types that there are, ascending; a kind's code is its place here."""
        return np.flatnonzero(np.bincount(self._pair_of_event))

    @cached_property
    def _kinds(self) -> Ints:
        place = np.zeros(int(self._pairs.max(initial=0)) + 1, dtype=np.int64)
        place[self._pairs] = np.arange(len(self._pairs))
        found: Ints = place[self._pair_of_event]
        return found

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
    cached = _is_fresh(db)
    span, event, subspan, facet = (
        _cached(db, name) if cached else bulk.read(db, *table) for name, table in _ARRAYS.items()
    )
    time, kind = event[1], event[2]
    return Columns(
        span[0], span[1], event[0], time, kind, subspan[0], subspan[1], facet[0], facet[1], names
    )


def cached_events(db: sqlite3.Connection) -> Ints | None:
    """Return the events as the cache holds them; None where it is not up to date."""
    if _is_fresh(db):
        return _cached(db, "event")
    empty = not db.execute("SELECT EXISTS (SELECT 1 FROM event_row)").fetchone()[0]
    return np.zeros((3, 0), dtype=np.int64) if empty else None


def write_cache(db: sqlite3.Connection, *, events: Ints | None = None) -> None:
    """Store the arrays of the present tables, in a transaction of its own.

    Args:
        db: The connection.
        events: The events, where the caller knows them: number of the span, time and number of the
            type, sorted. Unless they are as many as the table's, that is read.
    """
    db.execute("BEGIN IMMEDIATE")
    counts = _counts(db)
    known = {"event": events} if events is not None and events.shape[1] == counts[1] else {}
    for name, table in _ARRAYS.items():
        array = known[name] if name in known else bulk.read(db, *table)
        db.execute("REPLACE INTO column_cache VALUES (?, ?)", (name, _packed(array)))
    db.execute("REPLACE INTO column_cache VALUES (?, ?)", (_STAMP, json.dumps(counts)))
    db.execute("COMMIT")


def _is_fresh(db: sqlite3.Connection) -> bool:
    stamp = db.execute("SELECT data FROM column_cache WHERE name = ?", (_STAMP,)).fetchone()
    return stamp is not None and bool(json.loads(stamp[0]) == _counts(db))


def _cached(db: sqlite3.Connection, name: str) -> Ints:
    (data,) = db.execute("SELECT data FROM column_cache WHERE name = ?", (name,)).fetchone()
    return _unpacked(data)


def _counts(db: sqlite3.Connection) -> list[int]:
    return list(db.execute(_COUNTS).fetchone())


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
