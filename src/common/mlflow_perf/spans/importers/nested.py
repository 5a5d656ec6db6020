"""Storing spans that have a start, an end and a parent, as in tracing formats."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from mlflow_perf.spans.database.store import Key, Store, is_time, storable


@dataclass(slots=True)
class Nested:
    """A span of a trace.

    Attributes:
        type: Its type.
        scope: The name of its scope: the trace, the run, the file.
        key: Its key within scope and type.
        start_us: Unix microseconds of its start; None if unknown.
        end_us: Unix microseconds of its end; None if it did not end.
        parent: Scope and key of the span that it is part of.
        about: Its `name`, `host` and attributes.
        events: Unix microseconds and type of its other events.
        metrics: Name, Unix microseconds and value of each of its figures.
    """

    type: str
    scope: str
    key: Key
    start_us: int | None = None
    end_us: int | None = None
    parent: tuple[str, Key] | None = None
    about: dict[str, Any] = field(default_factory=dict)
    events: list[tuple[int, str]] = field(default_factory=list)
    metrics: list[tuple[str, int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the keys equal to the keys in the database."""
        if isinstance(self.key, str):
            self.key = storable(self.key)
        if self.parent is not None and isinstance(self.parent[1], str):
            self.parent = (self.parent[0], storable(self.parent[1]))


def store_nested(store: Store, spans: list[Nested]) -> None:
    """Store spans with their events and figures, and each as part of its parent.

    A parent that is not among the spans is ignored: its trace was cut off, or sampled.
    """
    groups: dict[tuple[str, str], dict[Key, dict[str, Any]]] = defaultdict(dict)
    for span in spans:
        groups[span.type, span.scope][span.key] = span.about
    numbers: dict[tuple[str, Key], int] = {}
    for (span_type, scope), described in groups.items():
        found = store.add_spans(span_type, store.scope(scope), described)
        numbers |= {(scope, key): found[key] for key in described}
    rows = []
    for span in spans:
        for time, name in ((span.start_us, "started"), (span.end_us, "ended"), *span.events):
            if time is not None and is_time(time):
                rows.append((numbers[span.scope, span.key], time, name))
            elif time is not None:
                store.not_read("a time that is out of range")
    store.add_events(rows)
    store.add_subspans(
        (numbers[s.parent], numbers[s.scope, s.key], s.key)
        for s in spans
        if s.parent is not None and s.parent in numbers
    )
    store.add_metrics(
        (numbers[s.scope, s.key], name, time, value)
        for s in spans
        for name, time, value in s.metrics
    )
