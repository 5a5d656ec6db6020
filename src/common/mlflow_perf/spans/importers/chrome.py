"""Chrome trace JSON, as browsers, PyTorch, Perfetto and mlflow-perf itself write it.

A span's type is `chrome.` and its category. A span within another on the same track is part of it.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections import defaultdict
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

from mlflow_perf.core.foreign_files import read_foreign
from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.base import MOST_MB
from mlflow_perf.spans.importers.lines import make_log_scope
from mlflow_perf.spans.importers.nested import Nested, store_nested

_MAX_BYTES = MOST_MB << 20
_MOST_CUTS = 100  # how many objects an event that was cut off may hold
_Track = tuple[Any, Any]


class ChromeTraceImporter:
    """Imports `traceEvents`: complete, begin/end, asynchronous and instant events."""

    name = "chrome-trace"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Return whether it is JSON with `traceEvents`, or an array of events with phases."""
        head = _unpack(head, 1 << 20).lstrip()
        if head[:1] == b"{":
            return b'"traceEvents"' in head
        return head[:1] == b"[" and b'"ph"' in head and b'"ts"' in head

    def load(self, source: Path, store: Store) -> None:
        """Import the events as spans, and instants as events of the span that encloses them.

        Raises:
            SpansError: It is not JSON, or unpacks to more than fits in memory.
        """
        data = read_foreign(source, most_mb=MOST_MB)
        head = _unpack(data[: 1 << 16], 1 << 16)
        trace = _Trace(make_log_scope("chrome", source, head[:4096]), store)
        for event in _parse_events(source, data):
            trace.add(event)
        store_nested(store, trace.finish())


class _Trace:
    """The events of one file, gathered by track."""

    def __init__(self, scope: str, store: Store) -> None:
        self._scope = scope
        self._store = store
        self._spans: list[tuple[_Track, Nested]] = []
        self._open: dict[Any, list[tuple[_Track, Nested]]] = defaultdict(list)
        self._instants: dict[_Track, list[tuple[int, str]]] = defaultdict(list)
        self._count = 0
        self._process: dict[str, str] = {}

    def add(self, event: dict[str, Any]) -> None:
        """Add one event of the file; count it as not read if it has no known phase or no time."""
        phase = str(event.get("ph"))
        if phase == "M":
            about = event.get("args")
            if event.get("name") == "process_name" and isinstance(about, dict):
                self._process[str(event.get("pid"))] = str(about.get("name"))
            return
        track = (event.get("pid"), event.get("tid"))
        # Asynchronous events are paired by their id, whatever their track; they may overlap there.
        call = (track[0], event.get("cat"), event.get("id", event.get("id2")), event.get("name"))
        try:
            time = round(float(event["ts"]))
            if phase == "X":
                end = time + round(float(event.get("dur", 0)))
                self._spans.append((track, self._make_span(event, time, end)))
            elif phase in ("B", "b", "S"):
                home = track if phase == "B" else ("async", call)
                span = self._make_span(event, time)
                self._open[track if phase == "B" else call].append((home, span))
            elif phase in ("E", "e", "F"):
                if stack := self._open[track if phase == "E" else call]:
                    self._spans.append(stack.pop())
                    self._spans[-1][1].end_us = time
                else:
                    self._store.not_read(f"an event of phase {phase} that ends nothing")
            elif phase in ("i", "I", "n", "R"):
                self._instants[track].append((time, str(event.get("name"))))
            else:
                self._store.not_read(f"an event of phase {phase}")
        except (KeyError, TypeError, ValueError, OverflowError):
            self._store.not_read(f"an event of phase {phase} without a time")

    def finish(self) -> list[Nested]:
        """Return the spans, each with the span that encloses it as its parent."""
        for stack in self._open.values():
            self._spans += stack
        tracks: dict[_Track, list[Nested]] = defaultdict(list)
        for track, span in self._spans:
            span.about.setdefault("host", self._process.get(str(track[0])))
            tracks[track].append(span)
        for track, spans in tracks.items():
            _nest(spans, self._instants.get(track, []))
        return [span for _, span in self._spans]

    def _make_span(self, event: dict[str, Any], start: int, end: int | None = None) -> Nested:
        name = str(event.get("name", ""))
        arguments = event.get("args")
        about = dict(arguments) if isinstance(arguments, dict) else {}
        about.pop("host", None)
        self._count += 1
        key = f"{event.get('pid')}/{event.get('tid')}/{start}/{name}/{self._count}"
        kind = f"chrome.{event.get('cat') or 'event'}"
        return Nested(kind, self._scope, key, start, end, about={**about, "name": name})


def _nest(spans: list[Nested], instants: list[tuple[int, str]]) -> None:
    """Assign each span and instant of one track to the innermost span that encloses it."""
    # In order of time, the longest span first, and spans before the instants of their beginning. A
    # span without an end outlasts all others.
    timeline: list[tuple[float, float, Nested | str]] = [
        (span.start_us or 0, -inf if span.end_us is None else -span.end_us, span) for span in spans
    ]
    timeline += [(time, inf, name) for time, name in instants]
    stack: list[Nested] = []
    for time, _, item in sorted(timeline, key=lambda entry: entry[:2]):
        if isinstance(item, str):
            within = [span for span in stack if span.end_us is None or time <= span.end_us]
            if within:
                within[-1].events.append((int(time), item))
            continue
        end = item.end_us or 0
        while stack and (top := stack[-1].end_us) is not None and (top < end or top <= time):
            stack.pop()
        if stack:
            item.parent = (stack[-1].scope, stack[-1].key)
        stack.append(item)


def _parse_events(source: Path, data: bytes) -> list[dict[str, Any]]:
    plain = _unpack(data, _MAX_BYTES + 1)
    if len(plain) > _MAX_BYTES:
        raise SpansError(
            f"{source} unpacks to more than {_MAX_BYTES >> 30} GiB: unpack it, and import parts."
        )
    text = plain.decode("utf-8", "replace")
    whole: Any = None
    try:
        whole = json.loads(text)
    except ValueError:
        # The format allows an array that is not closed: its complete events are taken.
        start, end = text.find("["), len(text)
        for _ in range(_MOST_CUTS if start >= 0 else 0):
            last = text.rfind("}", start, end)
            try:
                whole = json.loads(text[start : last + 1] + "]")
                break
            except json.JSONDecodeError as error:
                # What follows the fault cannot be read either.
                end = min(last, start + error.pos)
            if end <= start:
                break
        if whole is None:
            raise SpansError(f"{source} is not JSON: it was cut off or damaged.") from None
    events = whole.get("traceEvents", []) if isinstance(whole, dict) else whole
    return [event for event in events if isinstance(event, dict)]


def _unpack(data: bytes, most: int) -> bytes:
    """Return up to `most` bytes of the data; packed data is unpacked as far as possible."""
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        with gzip.open(io.BytesIO(data)) as file:
            return file.read(most)
    except (EOFError, OSError, zlib.error):
        # Only the head of a file, or a file that was cut off or damaged.
        with suppress(zlib.error):
            return zlib.decompressobj(wbits=31).decompress(data, most)
    return b""
