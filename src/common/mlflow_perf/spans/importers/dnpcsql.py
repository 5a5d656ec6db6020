"""A database that dnpcsql made: its spans, events, subspans and facets."""

from __future__ import annotations

from pathlib import Path

from mlflow_perf.spans.database.schema import make_source_uri
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.base import SQLITE_MAGIC, list_tables, read_statements

_TABLES = {"span", "event", "subspan"}


class DnpcsqlImporter:
    """Imports what dnpcsql has imported; the original logs are not needed."""

    name = "dnpcsql"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Return whether it is an SQLite file with dnpcsql's tables; our own files have views."""
        return head.startswith(SQLITE_MAGIC) and list_tables(source) >= _TABLES

    def load(self, source: Path, store: Store) -> None:
        """Import spans, events, subspans and facets, if it has a table of those.

        Raises:
            sqlite3.Error: The file is locked, or its tables have other columns.
        """
        store.db.execute("ATTACH ? AS source", (make_source_uri(source),))
        scope = store.scope("dnpcsql")
        has_facets = "facet" in list_tables(source)
        cursors = {
            name: store.db.execute(statement, {"scope": scope})
            for name, statement in read_statements("dnpcsql.sql").items()
            if name != "facets" or has_facets
        }
        store.spans += cursors["spans"].rowcount
        store.events += cursors["events"].rowcount
        if unread := cursors["unread"].fetchone()[0]:
            store.not_read("event without a time or a span", unread)
