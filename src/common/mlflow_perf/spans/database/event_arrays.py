"""The spans database as numpy arrays, and the events of each root span with all below it.

The arrays come from the column cache if it is fresh, else from the tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database import bulk, cache
from mlflow_perf.spans.database.bulk import Ints
from mlflow_perf.spans.database.schema import Database, open_for_reading

DEFAULT_ROOT = "parsl.monitoring.task"

Row = dict[str, Any]
"""One row of an analysis's answer."""

# Spans and strings are numbered from 1; lookup tables are as long as the highest number.
_MOST = 1 << 31
# The difference of two times within these bounds still fits in 64 bits.
_NEVER_US = 1 << 62


@dataclass(frozen=True)
class Columns:
    """The whole database as arrays.

    Attributes:
        names: The names by their number.
        span: Number of each span, ascending.
        span_type: Number of the name of its type.
        event_span: Number of each event's span; events are ordered by span, then time.
        event_time: Its Unix time in microseconds.
        event_type: Number of the name of its type.
        superspan: The upper end of each subspan relation.
        subspan: Its lower end.
        left: One end of each facet.
        right: The other.
    """

    names: dict[int, str]
    span: Ints
    span_type: Ints
    event_span: Ints
    event_time: Ints
    event_type: Ints
    superspan: Ints
    subspan: Ints
    left: Ints
    right: Ints

    def find_spans(self, span_type: str) -> Ints:
        """Return the numbers of the spans of a type.

        Raises:
            SpansError: There are none; the message lists the existing types.
        """
        numbers = [number for number, name in self.names.items() if name == span_type]
        found: Ints = self.span[np.isin(self.span_type, numbers)]
        if not len(found):
            kinds = sorted(self.names[int(k)] for k in np.unique(self.span_type))
            known = f"there are: {', '.join(kinds)}" if kinds else "the database is empty"
            raise SpansError(f"There are no spans of type {span_type!r}; {known}.")
        return found

    def closure(self, roots: Ints) -> tuple[Ints, Ints]:
        """Return every span that belongs to each root: down subspans, both ways over facets.

        A span that is reached in several ways counts once for each root. Cycles end.

        Args:
            roots: Numbers of the root spans.

        Returns:
            Two arrays of the same length: the position of the root in `roots`, and the number of
            the span. A root comes first, then its nearest spans.
        """
        sources = np.concatenate([self.superspan, self.left, self.right])
        targets = np.concatenate([self.subspan, self.right, self.left])
        order = np.argsort(sources, kind="stable")
        sources, targets = sources[order], targets[order]
        width = int(self.span[-1]) + 1 if len(self.span) else 1
        root, span = np.arange(len(roots)), roots
        found = [(root, span)]
        seen = np.sort(root * width + span)
        while len(span):
            edge, count = _expand(sources, span)
            keys = bulk.distinct(np.repeat(root, count) * width + targets[edge])
            place = np.searchsorted(seen, keys)
            place[place == len(seen)] = 0
            keys = keys[seen[place] != keys]
            root, span = keys // width, keys % width
            found.append((root, span))
            if len(keys):
                seen = np.concatenate([seen, keys])
                seen.sort(kind="stable")  # fast: it consists of two sorted runs
        return np.concatenate([r for r, _ in found]), np.concatenate([s for _, s in found])

    def streams(self, root_type: str) -> Streams:
        """Return the events of each span of a type and of all that belongs to it, in time order."""
        roots = self.find_spans(root_type)
        root, span = self.closure(roots)
        event, count = _expand(self.event_span, span)
        root = np.repeat(root, count)
        time = self.event_time[event]
        # Stable by root, then time: of simultaneous events those of the root span come first.
        low = int(time.min()) if len(time) else 0
        bits = (int(time.max(initial=low)) - low).bit_length()
        if bits + int(root.max(initial=0)).bit_length() < 63:
            order = np.argsort((root << bits) | (time - low), kind="stable")
        else:
            order = np.lexsort((time, root))
        event, root, time = event[order], root[order], time[order]
        kinds, codes = self._find_kinds()
        return Streams(kinds, roots, root, time, codes[event])

    def timed_spans(self, span_type: str | None = None) -> tuple[Ints, Ints, Ints]:
        """Return the spans with two or more events, and the times of their first and last event.

        Args:
            span_type: Only spans of this type; default: of every type.

        Raises:
            SpansError: There are no spans of type `span_type`.
        """
        first = np.flatnonzero(np.diff(self.event_span, prepend=-1))
        last = np.append(first[1:], len(self.event_span)) - 1
        wanted = last > first
        if span_type is not None:
            wanted &= np.isin(self.event_span[first], self.find_spans(span_type))
        first, last = first[wanted], last[wanted]
        return self.event_span[first], self.event_time[first], self.event_time[last]

    @cached_property
    def type_by_span(self) -> Ints:
        """The number of the type's name of each span, by the number of the span."""
        table = np.zeros(int(self.span[-1]) + 1 if len(self.span) else 1, dtype=np.int64)
        table[self.span] = self.span_type
        return table

    def _find_kinds(self) -> tuple[list[tuple[str, str]], Ints]:
        """Return the kinds of events by their codes, and the code of each event."""
        size = 1 + max(int(self.span_type.max(initial=0)), int(self.event_type.max(initial=0)))
        used = np.bincount(self.span_type, minlength=size)
        used += np.bincount(self.event_type, minlength=size)
        types = np.flatnonzero(used)
        # Short lookup tables: searching a sorted array a million times takes ten times as long.
        place = np.zeros(size, dtype=np.int64)
        place[types] = np.arange(len(types))
        by_span = place[self.type_by_span] * len(types)
        pair_by_event = by_span[self.event_span] + place[self.event_type]
        pairs = np.flatnonzero(np.bincount(pair_by_event))
        code = np.zeros(int(pairs.max(initial=0)) + 1, dtype=np.int64)
        code[pairs] = np.arange(len(pairs))
        names = [self.names[number] for number in types.tolist()]
        kinds = [divmod(pair, len(types)) for pair in pairs.tolist()]
        return [(names[span], names[event]) for span, event in kinds], code[pair_by_event]


@dataclass(frozen=True)
class Streams:
    """The events of each root in time order.

    Attributes:
        kinds: The kinds of events, `(span type, event type)`, in the order of their codes.
        roots: Numbers of the root spans.
        root: Position in `roots` of each event's root, ascending.
        time: Unix microseconds of each event.
        kind: Code of each event's kind.
    """

    kinds: list[tuple[str, str]]
    roots: Ints
    root: Ints
    time: Ints
    kind: Ints

    @cached_property
    def starts(self) -> Ints:
        """The position of the first event of each root that has events."""
        return np.flatnonzero(np.diff(self.root, prepend=-1))


def read_columns(db: Database) -> Columns:
    """Return the database as arrays.

    Raises:
        SpansError: The database cannot be used; see also `load_columns`.
    """
    with open_for_reading(db) as connection:
        return load_columns(connection)


def read_streams(db: Database, root: str) -> Streams:
    """Return the events of each span of type `root` and of all that belongs to it.

    Raises:
        SpansError: There are no spans of type `root`.
    """
    return read_columns(db).streams(root)


def load_columns(db: sqlite3.Connection) -> Columns:
    """Return the database as arrays.

    Raises:
        SpansError: A row refers to a span or a name that does not exist, or has an invalid time.
    """
    names = dict(db.execute("SELECT id, CAST(text AS TEXT) FROM string"))
    span, event, subspan, facet = (cache.read(db, name) for name in cache.ARRAYS)
    columns = Columns(names, *span, *event, *subspan, *facet)
    if found := list(_find_dangling(columns)):
        (file,) = db.execute("PRAGMA database_list").fetchone()[2:]
        raise SpansError(
            f"{file or 'The database'} is damaged: {', '.join(found)}: take those rows out with "
            "`mlflow-perf spans sql --write`, or import its sources into a new one."
        )
    return columns


def _find_dangling(columns: Columns) -> Iterator[str]:
    """Yield a description of the rows that refer to something missing, with their number."""
    names = np.array([n for n in columns.names if 0 < n < _MOST], dtype=np.int64)
    spans = columns.span[(columns.span > 0) & (columns.span < _MOST)]
    for description, values, known in (
        ("spans with an invalid number", columns.span, spans),
        ("spans with a type that has no name", columns.span_type, names),
        ("events of a span that is not there", columns.event_span, spans),
        ("events with a type that has no name", columns.event_type, names),
        ("subspans of a span that is not there", columns.superspan, spans),
        ("subspans that are not there", columns.subspan, spans),
        ("facets of a span that is not there", columns.left, spans),
        ("facets of a span that is not there", columns.right, spans),
    ):
        is_known = np.zeros(int(known.max(initial=0)) + 2, dtype=bool)
        is_known[known] = True
        # Numbers out of range are looked up at the ends of the table, which are never known.
        present = is_known[np.clip(values, 0, len(is_known) - 1)]
        if missing := len(values) - int(present.sum()):
            yield f"{description} ({missing:,})"
    time = columns.event_time
    if invalid := int(((time >= _NEVER_US) | (time <= -_NEVER_US)).sum()):
        yield f"events with an invalid time ({invalid:,})"


def _expand(ordered: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Find all places of each value in an ordered array.

    Returns:
        The places, one value after the other, and how many places each value has.
    """
    first = np.searchsorted(ordered, values, side="left")
    count = np.searchsorted(ordered, values, side="right") - first
    return np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum()), count
