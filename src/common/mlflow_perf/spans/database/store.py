"""Writing to a spans database: what every importer is handed.

May import spans.bulk, spans.cache. Every write names a span by its scope, type and key, and an
event by its span, time and type, so that what is written twice is stored once.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from mlflow_perf.spans.database import bulk
from mlflow_perf.spans.database.bulk import Ints
from mlflow_perf.spans.database.cache import EventPieces

__all__ = ["Key", "Progress", "Store", "is_time", "storable"]

Key = int | str
"""Names a span within its scope and type."""

Progress = Callable[[str, float], None]
"""Told what is being read, and what share of it is done (0 to 1)."""

# Some hundred thousand years, in microseconds.
_NEVER_US = 1 << 62
_KINDS_OF_UNREAD = 50
# From so many keys on, all of a scope are read at once.
_WHOLE_SCOPE = 20_000
_LOOKED_UP = 200


def is_time(time_us: int) -> bool:
    """Say whether a time can be stored: in a trace that is damaged, any number may stand."""
    return abs(time_us) < _NEVER_US


def storable(text: str) -> str:
    """Return a text as UTF-8 can hold it: JSON may hold half of a character."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _strict_json(attributes: Mapping[str, Any]) -> str:
    """Return attributes as JSON that SQLite and Perfetto read: what is not finite as a word."""
    try:
        return json.dumps(attributes, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(attributes, default=str), parse_constant=str))


def _ignore_progress(_what: str, _share: float) -> None:
    pass


class Store:
    """The writes of one source, within the caller's transaction.

    Attributes:
        db: The connection, for importers that write with SQL of their own.
        progress: Call it now and then.
        unread: How many lines or rows were not understood, by their wording.
        spans: How many spans were new.
        events: How many events were new.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        *,
        progress: Progress | None = None,
        pieces: EventPieces | None = None,
    ) -> None:
        self.db = db
        self.progress = progress or _ignore_progress
        self.unread: Counter[str] = Counter()
        self.spans = 0
        self.events = 0
        self._pieces = pieces
        self._strings: dict[str, int] = {}

    def string(self, text: str) -> int:
        """Return the number of a word; it is stored if it is new."""
        text = storable(text)
        number = self._strings.get(text)
        if number is None:
            self.db.execute("INSERT OR IGNORE INTO string (text) VALUES (?)", (text,))
            number = self._one("SELECT id FROM string WHERE text = ?", text)
            self._strings[text] = number
        return number

    def scope(self, name: str) -> int:
        """Return the number of a scope: within it and a type, a key names one span."""
        name = storable(name)
        self.db.execute("INSERT OR IGNORE INTO scope (name) VALUES (?)", (name,))
        return self._one("SELECT id FROM scope WHERE name = ?", name)

    def span(self, span_type: str, scope: int, key: Key, **about: Any) -> int:
        """Return the number of one span; see `add_spans`."""
        return self.add_spans(span_type, scope, {key: about})[key]

    def add_spans(
        self, span_type: str, scope: int, spans: Mapping[Key, Mapping[str, Any]] | Iterable[Key]
    ) -> dict[Key, int]:
        """Store spans of one type and scope.

        Args:
            span_type: Their type, dotted: `workqueue.task`.
            scope: From `scope`.
            spans: Their keys; as a mapping, each with its `name`, `host` and any attributes.

        Returns:
            The number of each span by its key.
        """
        described = spans if isinstance(spans, Mapping) else {key: {} for key in spans}
        type_id = self.string(span_type)
        rows = (
            (None, type_id, scope, key, *self._described(about)) for key, about in described.items()
        )
        new = bulk.insert(self.db, "span_row", rows)
        self.spans += new
        if new < len(described):
            self._describe(type_id, scope, described)
        return self._numbers(type_id, scope, described)

    def _describe(
        self, type_id: int, scope: int, described: Mapping[Key, Mapping[str, Any]]
    ) -> None:
        """Bring up to date what is known of spans: a run that went on has ended since."""
        self.db.executemany(
            "UPDATE span_row SET name_id = coalesce(?, name_id), host_id = coalesce(?, host_id),"
            " attributes = coalesce(?, attributes) WHERE type_id = ? AND scope_id = ? AND key = ?",
            (
                (*self._described(about), type_id, scope, key)
                for key, about in described.items()
                if about
            ),
        )

    def add_events(
        self,
        spans: Sequence[int] | npt.NDArray[np.int64],
        times_us: Sequence[int] | npt.NDArray[np.int64],
        types: Sequence[int] | npt.NDArray[np.int64],
    ) -> None:
        """Store events, in any order.

        Args:
            spans: The number of each event's span.
            times_us: Its Unix time in microseconds.
            types: The number of its type, from `string`.
        """
        self.add_event_table(np.array([spans, times_us, types], dtype=np.int64))

    def add_event_table(self, rows: Ints) -> None:
        """Store the events of a table of the three columns that `add_events` takes; it is used up.

        Args:
            rows: One row of the array for each column.
        """
        if not rows.shape[1]:
            return
        bulk.sort(rows)
        columns = [*rows, bulk.occurrence(rows)]
        new = bulk.insert_columns(self.db, "event_row", columns)
        self.events += new
        if self._pieces is not None:
            self._pieces.add(rows, new=new)

    def add_subspans(self, rows: Iterable[tuple[int, int, Key]]) -> None:
        """Store which span is part of which: `(superspan, subspan, key)`."""
        bulk.insert(self.db, "subspan_row", rows)

    def add_dependencies(self, rows: Iterable[tuple[int, int]]) -> None:
        """Store which span had to wait for which: `(span, needs)`."""
        bulk.insert(self.db, "dependency_row", rows)

    def add_facets(self, rows: Iterable[tuple[int, int]], *, note: str) -> None:
        """Store which spans are the same thing: `(left, right)`, whichever way round.

        Args:
            rows: The pairs; a pair that is known the other way round is left out.
            note: Why they are the same.
        """
        note_id = self.string(note)
        self.db.executemany(
            "INSERT OR IGNORE INTO facet_row SELECT :left, :right, :note WHERE NOT EXISTS"
            " (SELECT 1 FROM facet_row WHERE left_id = :right AND right_id = :left)",
            ({"left": left, "right": right, "note": note_id} for left, right in rows),
        )

    def add_metrics(self, rows: Iterable[tuple[int, str, int, float]]) -> None:
        """Store figures: `(span, name, time in microseconds, value)`."""
        self.db.executemany(
            "INSERT OR REPLACE INTO metric_row VALUES (?, ?, ?, ?)",
            (
                (span, self.string(name), time, value)
                for span, name, time, value in rows
                if self._is_figure(time, value)
            ),
        )

    def execute(self, sql: str, parameters: Mapping[str, Any] | None = None) -> int:
        """Run one INSERT of an importer's own SQL; return how many rows it stored."""
        return max(0, self.db.execute(sql, parameters or {}).rowcount)

    def count_spans(self) -> int:
        """Return how many spans the database holds."""
        return self._one("SELECT count(*) FROM span_row")

    def not_read(self, wording: str, count: int = 1) -> None:
        """Count what was not understood; beyond fifty wordings, under one."""
        known = wording in self.unread or len(self.unread) < _KINDS_OF_UNREAD
        self.unread[wording if known else "other wordings"] += count

    def _is_figure(self, time: int, value: float) -> bool:
        good = math.isfinite(value) and is_time(time)
        if not good:
            self.not_read("a figure or a time that is not finite")
        return good

    def _described(self, about: Mapping[str, Any]) -> tuple[int | None, int | None, str | None]:
        if not about:
            return None, None, None
        rest = {k: v for k, v in about.items() if k not in ("name", "host") and v is not None}
        name, host = about.get("name"), about.get("host")
        return (
            None if name is None else self.string(str(name)),
            None if host is None else self.string(str(host)),
            _strict_json(rest) if rest else None,
        )

    def _numbers(self, type_id: int, scope: int, keys: Mapping[Key, Any]) -> dict[Key, int]:
        """Return the number of each key's span."""
        query = "SELECT key, id FROM span_row WHERE type_id = ? AND scope_id = ?"
        if len(keys) > _WHOLE_SCOPE:
            return dict(self.db.execute(query, (type_id, scope)))
        # From the index: a scope of many workers' logs is not read whole for each of them.
        rest = iter(keys)
        found: dict[Key, int] = {}
        while several := list(islice(rest, _LOOKED_UP)):
            marks = ", ".join("?" * len(several))
            found |= dict(
                self.db.execute(f"{query} AND key IN ({marks})", (type_id, scope, *several))
            )
        return found

    def _one(self, sql: str, *parameters: Any) -> int:
        value: int = self.db.execute(sql, parameters).fetchone()[0]
        return value
