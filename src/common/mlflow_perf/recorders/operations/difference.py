"""The records between two moments of a recorder that continues."""

from __future__ import annotations

from mlflow_perf.model.sketch import Buckets, Sketch
from mlflow_perf.recorders.operations.metrics import OperationMetrics
from mlflow_perf.recorders.operations.stats import Metrics, TimeStats


def subtract(now: OperationMetrics, before: OperationMetrics) -> OperationMetrics:
    """Return what `now` has beyond `before`, an earlier state of the same recorder.

    Counts, totals, counters and percentiles are exact. The shortest and the longest time of an
    operation that had been recorded before are within 1%.
    """
    found = OperationMetrics()
    by_key, buckets, _ = now._snapshot()  # noqa: SLF001 - of the same subpackage
    old_keys, old_buckets, _ = before._snapshot()  # noqa: SLF001 - likewise
    new_buckets = {}
    for name, counts in buckets.items():
        old = old_buckets.get(name, {})
        left = {b: n - old.get(b, 0) for b, n in counts.items() if n > old.get(b, 0)}
        if left:
            new_buckets[name] = left
    new_keys = {}
    for key, metrics in by_key.items():
        old_metrics = old_keys.get(key, Metrics())
        new_keys[key] = Metrics(
            {
                name: value
                for name, value in metrics.attributes.items()
                if name not in old_metrics.attributes or old_metrics.attributes[name] is not value
            },
            {
                name: value - old_metrics.counters.get(name, 0)
                for name, value in metrics.counters.items()
                if value != old_metrics.counters.get(name, 0)
            },
            {
                name: _subtract_times(stats, old_metrics.times.get(name), new_buckets[name])
                for name, stats in metrics.times.items()
                if stats.count > old_metrics.times.get(name, TimeStats()).count
            },
        )
    found.__setstate__((new_keys, new_buckets, set()))
    return found


def _subtract_times(now: TimeStats, before: TimeStats | None, left: Buckets) -> TimeStats:
    stats = now.copy_sums()
    if before is None or not before.count:
        return stats
    stats.count -= before.count
    stats.total_time_ms = max(0.0, stats.total_time_ms - before.total_time_ms)
    # A new extreme is of this span; otherwise the span's own is known from its distribution.
    least, most = Sketch(left).percentiles((0, 100))
    if now.min_time_ms >= before.min_time_ms:
        stats.min_time_ms = max(least, now.min_time_ms)
    if now.max_time_ms <= before.max_time_ms:
        stats.max_time_ms = min(most, now.max_time_ms)
    return stats
