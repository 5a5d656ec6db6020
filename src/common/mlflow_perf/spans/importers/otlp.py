"""OpenTelemetry spans in OTLP's JSON: one document, or one on each line.

A span's type is `otel.` and its name, which OpenTelemetry keeps free of ids.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlflow_perf.core.foreign_files import read_foreign
from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.base import MOST_MB
from mlflow_perf.spans.importers.nested import Nested, store_nested


class OtlpImporter:
    """Imports the `resourceSpans` of OTLP JSON."""

    name = "otlp"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Return whether it is JSON with `resourceSpans`."""
        return head.lstrip()[:1] in (b"{", b"[") and b'"resourceSpans"' in head

    def load(self, source: Path, store: Store) -> None:
        """Import the spans with their events, attributes and parents.

        Raises:
            SpansError: It is not JSON.
        """
        found: list[Nested] = []
        for document in _read_documents(source, store):
            for resource in _list(document, "resourceSpans"):
                shared = _attributes(resource.get("resource", {}))
                for scope in _list(resource, "scopeSpans", "instrumentationLibrarySpans"):
                    for span in _list(scope, "spans"):
                        try:
                            found.append(_read_span(span, shared))
                        except (KeyError, TypeError, ValueError, OverflowError):
                            store.not_read("a span without traceId, spanId or a time")
        store_nested(store, found)


def _read_documents(source: Path, store: Store) -> list[dict[str, Any]]:
    text = read_foreign(source, most_mb=MOST_MB).decode("utf-8", "replace")
    try:
        whole = json.loads(text)
        documents = whole if isinstance(whole, list) else [whole]
    except ValueError:
        documents = []
        # Not `splitlines`, which also splits at characters that JSON strings may contain.
        for line in filter(str.strip, text.split("\n")):
            try:
                documents.append(json.loads(line))
            except ValueError:
                store.not_read("a line that is not JSON (cut off?)")
        if not any(isinstance(document, dict) for document in documents):
            raise SpansError(
                f"{source} is not JSON, nor JSON lines: it was cut off or damaged."
            ) from None
    return [document for document in documents if isinstance(document, dict)]


def _read_span(span: dict[str, Any], shared: dict[str, Any]) -> Nested:
    """Return a span with its resource's attributes; raise if an id or a time is missing."""
    scope, parent = f"otel:{span['traceId']}", span.get("parentSpanId")
    end = span.get("endTimeUnixNano")
    attributes = {**shared, **_attributes(span)}
    return Nested(
        type=f"otel.{span.get('name') or 'span'}",
        scope=scope,
        key=str(span["spanId"]),
        start_us=int(span["startTimeUnixNano"]) // 1000,
        end_us=int(end) // 1000 if end else None,
        parent=(scope, str(parent)) if parent else None,
        about={
            "name": attributes.get("service.name"),
            "host": attributes.get("host.name"),
            **{k: v for k, v in attributes.items() if k not in ("name", "host")},
            "status": (span.get("status") or {}).get("code"),
        },
        events=[
            (int(event["timeUnixNano"]) // 1000, str(event.get("name") or "event"))
            for event in _list(span, "events")
        ],
    )


def _attributes(holder: Any) -> dict[str, Any]:
    values = {}
    for entry in _list(holder, "attributes"):
        value = entry.get("value")
        if isinstance(value, dict) and value:
            values[str(entry.get("key"))] = next(iter(value.values()))
    return values


def _list(holder: Any, *names: str) -> list[dict[str, Any]]:
    found: Any = next((holder[n] for n in names if isinstance(holder, dict) and n in holder), [])
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
