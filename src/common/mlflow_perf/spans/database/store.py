"""The store: what importers write spans, events and figures with.

Every write identifies a span by its scope, type and key, and an event by its span, time and type:
writing the same thing twice stores it once.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import tzinfo
from itertools import islice
from typing import Any

import numpy as np

from mlflow_perf.spans.database import bulk
from mlflow_perf.spans.database.bulk import Ints
from mlflow_perf.spans.database.cache import EventPieces

Key = int | str
"""Identifies a span within its scope and type."""

Progress = Callable[[str, float], None]
"""Called with the name of the current step and the share done, from 0 to 1."""

# More than 100,000 years, in microseconds.
_NEVER_US = 1 << 62
_MAX_UNREAD_WORDINGS = 50
# With more keys than this, the numbers of the whole scope are read at once.
_WHOLE_SCOPE = 20_000
_KEYS_IN_QUERY = 200


def is_time(time_us: int) -> bool:
    """Return whether a time can be stored; a damaged trace may hold any number."""
    return abs(time_us) < _NEVER_US


def storable(text: str) -> str:
    """Replace what UTF-8 cannot hold: JSON may contain half of a surrogate pair."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class Store:
    """Stores the data of one source, within the caller's transaction.

    Attributes:
        db: The connection, for importers that write with SQL of their own.
        progress: Importers call it now and then.
        unread: How many lines or rows were not understood, by their wording.
        time_zone: The zone of local times whose source shows none; None for this machine's.
        assumes_zone: Whether a source of local times showed no zone.
        notes: What a user must know of the import, one sentence each.
        spans: How many spans were new.
        events: How many events were new.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        *,
        progress: Progress | None = None,
        pieces: EventPieces | None = None,
        time_zone: tzinfo | None = None,
    ) -> None:
        self.db = db
        self.time_zone = time_zone
        self.assumes_zone = False
        self.notes: list[str] = []
        self.progress = progress or (lambda _step, _share: None)
        self.unread: Counter[str] = Counter()
        self.spans = 0
        self.events = 0
        self._pieces = pieces
        self._strings: dict[str, int] = {}

    def string(self, text: str) -> int:
        """Return the number of a string; a new string is stored."""
        text = storable(text)
        number = self._strings.get(text)
        if number is None:
            self.db.execute("INSERT OR IGNORE INTO string (text) VALUES (?)", (text,))
            number = self._one("SELECT id FROM string WHERE text = ?", text)
            self._strings[text] = number
        return number

    def scope(self, name: str) -> int:
        """Return the number of a scope, within which type and key identify a span."""
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
            (None, type_id, scope, key, *self._describe(about)) for key, about in described.items()
        )
        new = bulk.insert(self.db, "span_row", rows)
        self.spans += new
        if new < len(described):
            # A run that was imported while it ran may have a status and an end by now.
            self.db.executemany(
                "UPDATE span_row SET name_id = coalesce(?, name_id),"
                " host_id = coalesce(?, host_id), attributes = coalesce(?, attributes)"
                " WHERE type_id = ? AND scope_id = ? AND key = ?",
                (
                    (*self._describe(about), type_id, scope, key)
                    for key, about in described.items()
                    if about
                ),
            )
        query = "SELECT key, id FROM span_row WHERE type_id = ? AND scope_id = ?"
        if len(described) > _WHOLE_SCOPE:
            return dict(self.db.execute(query, (type_id, scope)))
        # By the index: the logs of many workers share a scope, which is not read for each of them.
        rest = iter(described)
        numbers: dict[Key, int] = {}
        while keys := list(islice(rest, _KEYS_IN_QUERY)):
            marks = ", ".join("?" * len(keys))
            found = self.db.execute(f"{query} AND key IN ({marks})", (type_id, scope, *keys))
            numbers |= dict(found)
        return numbers

    def add_events(self, rows: Iterable[tuple[int, int, str]]) -> None:
        """Store events, in any order: `(span, time in microseconds, type)`."""
        numbered = [(span, time, self.string(name)) for span, time, name in rows]
        self.add_event_table(np.array(numbered, dtype=np.int64).reshape(-1, 3).T.copy())

    def add_event_table(self, rows: Ints) -> None:
        """Store events given as columns of span, time and the type's number from `string`.

        The array is sorted in place.
        """
        if not rows.shape[1]:
            return
        bulk.sort(rows)
        new = bulk.insert_columns(self.db, "event_row", [*rows, bulk.occurrence(rows)])
        self.events += new
        if self._pieces is not None:
            self._pieces.add(rows, new=new)

    def add_subspans(self, rows: Iterable[tuple[int, int, Key]]) -> None:
        """Store which span is part of another: `(superspan, subspan, key)`."""
        bulk.insert(self.db, "subspan_row", rows)

    def add_dependencies(self, rows: Iterable[tuple[int, int]]) -> None:
        """Store which span had to wait for another: `(span, needs)`."""
        bulk.insert(self.db, "dependency_row", rows)

    def add_facets(self, rows: Iterable[tuple[int, int]], *, note: str) -> None:
        """Store which spans are the same thing.

        Args:
            rows: Pairs `(left, right)`; a pair already stored as `(right, left)` is left out.
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
        good = []
        for span, name, time, value in rows:
            if math.isfinite(value) and is_time(time):
                good.append((span, self.string(name), time, value))
            else:
                self.not_read("a figure or a time that is not finite")
        self.db.executemany("INSERT OR REPLACE INTO metric_row VALUES (?, ?, ?, ?)", good)

    def count_spans(self) -> int:
        """Return how many spans the database holds."""
        return self._one("SELECT count(*) FROM span_row")

    def not_read(self, wording: str, count: int = 1) -> None:
        """Count lines or rows that were not understood; after fifty wordings, under one."""
        known = wording in self.unread or len(self.unread) < _MAX_UNREAD_WORDINGS
        self.unread[wording if known else "other wordings"] += count

    def _describe(self, about: Mapping[str, Any]) -> tuple[int | None, int | None, str | None]:
        """Return a span's name and host by their numbers, and its attributes as strict JSON."""
        words = [about.get("name"), about.get("host")]
        name, host = (None if word is None else self.string(str(word)) for word in words)
        rest = {k: v for k, v in about.items() if k not in ("name", "host") and v is not None}
        if not rest:
            return name, host, None
        try:
            attributes = json.dumps(rest, default=str, allow_nan=False)
        except ValueError:
            # SQLite and Perfetto read no NaN: it becomes a string.
            plain = json.loads(json.dumps(rest, default=str), parse_constant=str)
            attributes = json.dumps(plain)
        return name, host, attributes

    def _one(self, sql: str, *parameters: Any) -> int:
        value: int = self.db.execute(sql, parameters).fetchone()[0]
        return value
