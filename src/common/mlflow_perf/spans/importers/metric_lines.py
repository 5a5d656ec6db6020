"""`METRIC` lines within any log: figures of a span at a time.

A line has a time, any text, the word METRIC, a span type, the span's name, and `key=number` pairs:

    1669383194.39 … METRIC STRATEGY htex_Local active_tasks=3 running_blocks=2
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.lines import Log, make_log_scope, strip_numbers
from mlflow_perf.spans.importers.local_time import Offset, machine_offsets, offsets_of_log

__all__ = ["MetricLinesImporter", "import_metric_lines"]

_WORD = b" METRIC "
_LINE = re.compile(rb"(?<= METRIC )(\S+) (\S+) +([^\"]*)")
_LOCAL = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
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
        with source.open("rb") as file:
            head = file.read(1 << 16)
        local = _LOCAL.search(head.decode("utf-8", "replace"))
        offsets = offsets_of_log(source) or (machine_offsets(local[0]) if local else [])
        scope = store.scope(make_log_scope("metric", source, head))
        import_metric_lines(source, store, scope, offsets)


def import_metric_lines(source: Path, store: Store, scope: int, offsets: Sequence[Offset]) -> None:
    """Import the METRIC lines of a log into a scope; incomplete lines are counted as not read."""
    found: list[tuple[str, str, int]] = []
    # Each figure with the position of its line in `found`.
    figures: list[tuple[int, str, float]] = []
    with Log(source, offsets) as log:
        log.count_unended(store)
        for line in log.find(_WORD):
            match, time = _LINE.search(line), log.time_us(line)
            if match is None or time is None:
                store.not_read(strip_numbers(line))
                continue
            span_type, key, rest = (part.decode("utf-8", "replace") for part in match.groups())
            for word in rest.split():
                name, equals, value = word.partition("=")
                try:
                    figures.append((len(found), name, float(value)))
                except ValueError:
                    store.not_read(f"METRIC … {name}{equals}… is not a number")
            found.append((span_type, key, time))
    numbers = {}
    for span_type in {t for t, _, _ in found}:
        keys = {key: {"name": key} for t, key, _ in found if t == span_type}
        for key, number in store.add_spans(span_type, scope, keys).items():
            numbers[span_type, key] = number
    spans = [numbers[span_type, key] for span_type, key, _ in found]
    times = [time for _, _, time in found]
    store.add_events(spans, times, [store.string("METRIC")] * len(found))
    store.add_metrics((spans[i], name, times[i], value) for i, name, value in figures)
