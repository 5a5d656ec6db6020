"""Spans with a start, an end and a parent, as tracing formats have them: one way to store them.

May import spans.store.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from mlflow_perf.spans.database.store import Key, Store, is_time, storable

__all__ = ["STARTED", "Nested", "store_nested"]

STARTED, ENDED = "started", "ended"


@dataclass(slots=True)
class Nested:
    """A span of a trace.

    Attributes:
        type: Its type.
        scope: The name of its scope: the trace, the run, the file.
        key: What names it there.
        start_us: Unix microseconds of its start; None where it is not known.
        end_us: Unix microseconds of its end; None where it did not end.
        parent: Scope and key of the span that it is part of.
        about: `name`, `host` and attributes.
        events: Unix microseconds and type of what else happened.
        metrics: Name, Unix microseconds and value of its figures.
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
        """Keep the keys as the database will."""
        self.key = _kept(self.key)
        if self.parent is not None:
            self.parent = (self.parent[0], _kept(self.parent[1]))

    def all_events(self) -> list[tuple[int, str]]:
        """Return start, end and what else happened."""
        ends = [(self.start_us, STARTED), (self.end_us, ENDED)]
        return [(time, name) for time, name in ends if time is not None] + self.events


def store_nested(store: Store, spans: list[Nested]) -> None:
    """Store spans, their events and figures, and what is part of what.

    A parent that is not among them is left out: its trace was cut, or sampled.
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
        for time, name in span.all_events():
            if is_time(time):
                rows.append((numbers[span.scope, span.key], time, name))
            else:
                store.not_read("a time that is out of range")
    store.add_events(
        [number for number, _, _ in rows],
        [time for _, time, _ in rows],
        [store.string(name) for _, _, name in rows],
    )
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


def _kept(key: Key) -> Key:
    return storable(key) if isinstance(key, str) else key
