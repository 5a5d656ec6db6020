"""Rules of the sums of one key."""

from __future__ import annotations

from mlflow_perf.recorders.operations.entry import Count, Entry, RecordedTimes


def test_a_copy_has_the_sums_of_now() -> None:
    """Records that follow do not change the copy, and the shared distribution stays behind."""
    entry = Entry()
    assert entry.is_empty()
    entry.times["get"] = RecordedTimes("get", "k", {})
    entry.times["get"].add_time(2.0, 5.0)
    entry.counters["hits"] = Count("hits", "k")
    copy = entry.copy_metrics()
    entry.times["get"].add_time(4.0)
    entry.counters["hits"].value += 1
    assert not entry.is_empty()
    assert (copy.times["get"].count, copy.counters) == (1, {"hits": 0})
    assert copy.times["get"].buckets is None


def test_the_keys_of_an_operation_share_its_distribution() -> None:
    """The times of each key are counted in the buckets of the operation."""
    buckets: dict[int, int] = {}
    for key in ("a", "b"):
        RecordedTimes("get", key, buckets).add_time(2.0)
    assert sum(buckets.values()) == 2
