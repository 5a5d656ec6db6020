"""OpenTelemetry spans in OTLP's JSON: one document, or one on each line.

May import errors, spans.store, spans.importers.nested. A span's type is `otel.` and its name, which
OpenTelemetry keeps free of ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.nested import Nested, store_nested

__all__ = ["OtlpImporter"]


class OtlpImporter:
    """Imports the `resourceSpans` of OTLP JSON."""

    name = "otlp"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Say whether it is JSON with `resourceSpans`."""
        return head.lstrip()[:1] in (b"{", b"[") and b'"resourceSpans"' in head

    def load(self, source: Path, store: Store) -> None:
        """Import the spans with their events, attributes and parents.

        Raises:
            SpansError: It is not JSON.
        """
        found: list[Nested] = []
        for document in _documents(source, store):
            for resource in _list(document, "resourceSpans"):
                about = _attributes(resource.get("resource", {}))
                for scope in _list(resource, "scopeSpans", "instrumentationLibrarySpans"):
                    for span in _list(scope, "spans"):
                        _add(found, span, about, store)
        store_nested(store, found)


def _documents(source: Path, store: Store) -> Iterator[dict[str, Any]]:
    text = source.read_text("utf-8", "replace")
    try:
        whole = json.loads(text)
    except ValueError:
        yield from _lines(source, text, store)
        return
    yield from (d for d in (whole if isinstance(whole, list) else [whole]) if isinstance(d, dict))


def _lines(source: Path, text: str, store: Store) -> Iterator[dict[str, Any]]:
    read = 0
    # Not `splitlines`, which breaks at characters too that may stand within JSON's strings.
    for line in filter(str.strip, text.split("\n")):
        try:
            document = json.loads(line)
        except ValueError:
            store.not_read("a line that is not JSON (cut off?)")
            continue
        if isinstance(document, dict):
            read += 1
            yield document
    if not read:
        raise SpansError(f"{source} is not JSON, nor JSON lines: it was cut off or damaged.")


def _add(found: list[Nested], span: dict[str, Any], about: dict[str, Any], store: Store) -> None:
    try:
        trace, key = str(span["traceId"]), str(span["spanId"])
        start, end = _microseconds(span["startTimeUnixNano"]), span.get("endTimeUnixNano")
        end = _microseconds(end) if end else None
        events = [
            (_microseconds(event["timeUnixNano"]), str(event.get("name") or "event"))
            for event in _list(span, "events")
        ]
    except (KeyError, TypeError, ValueError, OverflowError):
        store.not_read("a span without traceId, spanId or a time")
        return
    attributes = {**about, **_attributes(span)}
    parent = span.get("parentSpanId")
    found.append(
        Nested(
            type=f"otel.{span.get('name') or 'span'}",
            scope=f"otel:{trace}",
            key=key,
            start_us=start,
            end_us=end,
            parent=(f"otel:{trace}", str(parent)) if parent else None,
            about={
                "name": attributes.get("service.name"),
                "host": attributes.get("host.name"),
                **{k: v for k, v in attributes.items() if k not in ("name", "host")},
                "status": (span.get("status") or {}).get("code"),
            },
            events=events,
        )
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


def _microseconds(nanoseconds: Any) -> int:
    return int(nanoseconds) // 1000
