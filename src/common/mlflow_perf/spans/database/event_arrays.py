"""The database's events and relations as numpy arrays, and the closure of spans below a root.

May import errors, spans.bulk, spans.cache.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database import bulk, cache
from mlflow_perf.spans.database.bulk import Ints

__all__ = ["Columns", "Ints", "Streams", "columns_of"]

# Spans and words are numbered from 1 on; tables as long as the highest number are worked with.
_MOST = 1 << 31
# Two times as far apart can still be subtracted.
_NEVER_US = 1 << 62


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

    def check_type(self, name: str) -> None:
        """Complain where no span is of a type.

        Raises:
            SpansError: There is none; the message says which types there are.
        """
        number = self.number(name)
        if number < 0 or not (self.span_type == number).any():
            kinds = sorted(self.names[int(k)] for k in np.unique(self.span_type))
            known = f"there are: {', '.join(kinds)}" if kinds else "the database is empty"
            raise SpansError(f"There are no spans of type {name!r}; {known}.")

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
    """Return the arrays: from the cache where it is up to date, else from the tables.

    Raises:
        SpansError: A row names a span or a word that is not there, or a time that is none.
    """
    names = dict(db.execute("SELECT id, CAST(text AS TEXT) FROM string"))
    span, event, subspan, facet = (cache.read(db, name) for name in cache.ARRAYS)
    time, kind = event[1], event[2]
    columns = Columns(
        span[0], span[1], event[0], time, kind, subspan[0], subspan[1], facet[0], facet[1], names
    )
    if found := list(_dangling(columns)):
        (file,) = db.execute("PRAGMA database_list").fetchone()[2:]
        raise SpansError(
            f"{file or 'The database'} is damaged: {', '.join(found)}: take those rows out with "
            "`mlflow-perf spans sql --write`, or import its sources into a new one."
        )
    return columns


def _dangling(columns: Columns) -> Iterator[str]:
    """Yield what names something that is not there, and how often."""
    words = np.array([n for n in columns.names if 0 < n < _MOST], dtype=np.int64)
    spans = columns.span[(columns.span > 0) & (columns.span < _MOST)]
    for what, values, known in (
        ("spans with a number that is none", columns.span, spans),
        ("spans with a type that has no name", columns.span_type, words),
        ("events of a span that is not there", columns.event_span, spans),
        ("events with a type that has no name", columns.event_type, words),
        ("subspans of a span that is not there", columns.superspan, spans),
        ("subspans that are not there", columns.subspan, spans),
        ("facets of a span that is not there", columns.left, spans),
        ("facets of a span that is not there", columns.right, spans),
    ):
        if missing := _count_missing(values, known):
            yield f"{what} ({missing:,})"
    time = columns.event_time
    if never := int(((time >= _NEVER_US) | (time <= -_NEVER_US)).sum()):
        yield f"events with a time that is none ({never:,})"


def _count_missing(values: Ints, known: Ints) -> int:
    """Return how many of some numbers are not among those that are known."""
    if not len(values):
        return 0
    table = np.zeros(int(known.max(initial=0)) + 2, dtype=bool)
    table[known] = True
    # What is out of the table's range is looked up at its ends, which are not known.
    return int(len(values) - table[np.clip(values, 0, len(table) - 1)].sum())


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
