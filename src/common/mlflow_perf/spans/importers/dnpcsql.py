"""A database that dnpcsql made: its spans, events, subspans and facets."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.schema import source_uri
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.base import SQLITE_MAGIC, list_tables

__all__ = ["DnpcsqlImporter"]

_TABLES = {"span", "event", "subspan"}
# dnpcsql's uuids are globally unique: one scope holds the spans of all its databases.
_SCOPE = "dnpcsql"
_WORDS = (
    "INSERT OR IGNORE INTO main.string (text) SELECT type FROM source.span WHERE type <> ''"
    " UNION SELECT type FROM source.event WHERE type <> ''"
    " UNION SELECT note FROM source.span WHERE note <> ''"
)
_SPANS = (
    "INSERT OR IGNORE INTO main.span_row (type_id, scope_id, key, name_id)"
    " SELECT t.id, :scope, s.uuid, n.id FROM source.span s JOIN main.string t ON t.text = s.type"
    " LEFT JOIN main.string n ON n.text = s.note WHERE s.uuid IS NOT NULL"
)
_NUMBERS = (
    "CREATE TABLE temp.span_number AS SELECT key, id FROM main.span_row WHERE scope_id = :scope",
    "CREATE INDEX temp.span_number_key ON span_number (key)",
)
# The times are texts of Unix seconds. Equal events within one microsecond are numbered.
_EVENTS = (
    "INSERT OR IGNORE INTO main.event_row SELECT m.id, e.time_us, t.id,"
    " row_number() OVER (PARTITION BY m.id, e.time_us, t.id ORDER BY e.uuid) - 1"
    " FROM (SELECT uuid, span_uuid, type, CAST(round(time * 1e6) AS INTEGER) AS time_us"
    "       FROM source.event WHERE time GLOB '[0-9]*') e"
    " JOIN temp.span_number m ON m.key = e.span_uuid JOIN main.string t ON t.text = e.type"
)
_SUBSPANS = (
    "INSERT OR IGNORE INTO main.subspan_row SELECT a.id, b.id, s.key FROM source.subspan s"
    " JOIN temp.span_number a ON a.key = s.superspan_uuid"
    " JOIN temp.span_number b ON b.key = s.subspan_uuid"
)
_FACETS = (
    "INSERT OR IGNORE INTO main.facet_row SELECT a.id, b.id, NULL FROM source.facet f"
    " JOIN temp.span_number a ON a.key = f.left_uuid"
    " JOIN temp.span_number b ON b.key = f.right_uuid"
)
_UNREAD = (
    "SELECT count(*) FROM source.event e WHERE NOT coalesce(time GLOB '[0-9]*', 0)"
    " OR span_uuid NOT IN (SELECT key FROM temp.span_number)"
)


class DnpcsqlImporter:
    """Imports what dnpcsql has imported; the original logs are not needed."""

    name = "dnpcsql"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Return whether it is an SQLite file with dnpcsql's tables; our own files have views."""
        return head.startswith(SQLITE_MAGIC) and list_tables(source) >= _TABLES

    def load(self, source: Path, store: Store) -> None:
        """Import spans, events, subspans and facets, if it has a table of those.

        Raises:
            SpansError: The file is locked, or its tables have other columns.
        """
        db = store.db
        try:
            db.execute("ATTACH ? AS source", (source_uri(source),))
            scope = {"scope": store.scope(_SCOPE)}
            db.execute(_WORDS)
            store.spans += store.execute(_SPANS, scope)
            db.execute("DROP TABLE IF EXISTS temp.span_number")
            for statement in _NUMBERS:
                db.execute(statement, scope if ":scope" in statement else {})
            store.events += store.execute(_EVENTS)
            store.execute(_SUBSPANS)
            if "facet" in list_tables(source):
                store.execute(_FACETS)
            (unread,) = db.execute(_UNREAD).fetchone()
        except sqlite3.Error as error:
            raise SpansError(f"{source} cannot be read as dnpcsql's: {error}.") from error
        if unread:
            store.not_read("event without a time or a span", unread)
