"""`METRIC` lines within any log: figures of a span at a time.

A line has a time, any text, the word METRIC, a span type, the span's name, and `key=number` pairs:

    1669383194.39 … METRIC STRATEGY htex_Local active_tasks=3 running_blocks=2
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.base import read_head
from mlflow_perf.spans.importers.lines import Log, make_log_scope
from mlflow_perf.spans.importers.local_time import Offset, find_offsets

_WORD = b" METRIC "
_LINE = re.compile(rb"(?<= METRIC )(\S+) (\S+) +([^\"]*)")
# A NUL byte within these marks a binary file.
_TEXT_BYTES = 4096


class MetricLinesImporter:
    """Imports the METRIC lines of a log."""

    name = "metric-lines"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Return whether it is a text file with METRIC lines."""
        if not head or b"\0" in head[:_TEXT_BYTES]:
            return False
        if _WORD in head:
            return True
        with Log(source) as log:
            return log.has(_WORD)

    def load(self, source: Path, store: Store) -> None:
        """Import each line as an event `METRIC` of its span, with the figures."""
        scope = store.scope(make_log_scope("metric", source, read_head(source)))
        import_metric_lines(source, store, scope, find_offsets(source, store))


def import_metric_lines(source: Path, store: Store, scope: int, offsets: Sequence[Offset]) -> None:
    """Import the METRIC lines of a log into a scope; incomplete lines are counted as not read."""
    spans: dict[tuple[str, str], int] = {}
    events: list[tuple[int, int, str]] = []
    figures: list[tuple[int, str, int, float]] = []
    with Log(source, offsets) as log:
        log.count_unended(store)
        for match, time in log.search(_WORD, _LINE, store):
            span_type, key, rest = (part.decode("utf-8", "replace") for part in match.groups())
            if (span_type, key) not in spans:
                spans[span_type, key] = store.span(span_type, scope, key, name=key)
            span = spans[span_type, key]
            events.append((span, time, "METRIC"))
            for word in rest.split():
                name, equals, value = word.partition("=")
                try:
                    figures.append((span, name, time, float(value)))
                except ValueError:
                    store.not_read(f"METRIC … {name}{equals}… is not a number")
    store.add_events(events)
    store.add_metrics(figures)
