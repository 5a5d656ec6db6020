"""`OperationMetrics`: attributes, counters and times of operations, by name and key."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from math import inf, log
from pathlib import Path
from time import time
from typing import Any

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.errors import SettingError
from mlflow_perf.model.sketch import OFFSET, SCALE, SMALLEST, Buckets, Sketch
from mlflow_perf.recorders.operations import codec, names
from mlflow_perf.recorders.operations.entry import Count, Entry, RecordedTimes
from mlflow_perf.recorders.operations.keys import check_name, hide_secrets, plain_key
from mlflow_perf.recorders.operations.operation_spool import OperationSpool
from mlflow_perf.recorders.operations.stats import Metrics, TimeStats, as_number, as_time
from mlflow_perf.recorders.operations.timer import OperationTimer
from mlflow_perf.recorders.record_spool import SpooledRecorder

_logger = get_logger(__name__)
_PLAIN_KEYS = (str, int)
_Snapshot = tuple[dict[Any, Metrics], dict[str, Buckets], set[str]]


class OperationMetrics(SpooledRecorder):
    """Records attributes, counters and times of operations, from any number of threads.

    A key identifies the object of an operation (a file, a request). A list of keys is one super
    key; None means no key. Names are free; dots make them hierarchical. The percentiles of an
    operation are kept over all its keys.

    Memory is bounded, and no total is lost: records of keys beyond the first `max_keys` go to the
    key None, and records of names beyond the first `max_names` to the name `other`.

    Args:
        max_keys: How many keys are kept separately.
        max_names: How many names are kept separately.

    Raises:
        SettingError: If a bound is not a whole number of at least one.
    """

    def __init__(self, max_keys: int = 10_000, *, max_names: int = 2_000) -> None:
        for setting, bound in (("max_keys", max_keys), ("max_names", max_names)):
            if type(bound) is not int or bound < 1:
                raise SettingError(f"{setting} is {bound!r}: give a whole number of at least 1.")
        super().__init__()
        self._max_keys = max_keys
        self._max_names = max_names
        self.forget()

    def forget(self) -> None:
        """Forget everything and write no more: a forked child's parent reports it."""
        self._spool: OperationSpool | None = None
        self._warned = False
        self._entries: dict[Any, Entry] = {None: Entry()}
        self._buckets: dict[str, Buckets] = {}
        self._names: set[str] = set()
        self._sources: set[str] = set()

    def add_attribute(self, name: str, key: Any, value: Any) -> None:
        """Set an attribute of a key; the last value counts.

        Beyond `max_keys` keys, the attributes of further ones are not kept.

        Raises:
            SettingError: If the name is not a string with something in it, or the key not hashable.
        """
        with self._lock:
            entry, kept = self._entry(key)
            if kept is None and key is not None:
                return
            name = self._name(name)
            entry.attributes[name] = value
            if self._spool is not None:
                self._spool.add_attribute(name, kept, value)

    def add_counter(self, name: str, key: Any, value: float) -> None:
        """Add to a counter of a key.

        Raises:
            SettingError: If the value is not a finite number, the name not a string with something
                in it, or the key not hashable.
        """
        if type(value) is not int:
            value = as_number(name, value)
        with self._lock:
            count = self._count(name, key)
            count.value += value
            if self._spool is not None:
                self._spool.add_count(count, value)

    def add_time(self, name: str, key: Any, time_ms: float) -> None:
        """Record how long an operation took, in milliseconds.

        Raises:
            SettingError: If the time is negative, not finite or not a number, the name not a string
                with something in it, or the key not hashable.
        """
        if type(time_ms) is not float or not 0.0 <= time_ms < inf:
            time_ms = as_time(name, time_ms)
        if key is not None and type(key) not in _PLAIN_KEYS:
            key = plain_key(key)  # a proxy must not be hashed: that would fetch its object
        now = time()
        bucket = int(log(time_ms) * SCALE + OFFSET) if time_ms >= SMALLEST else 0
        # TimeStats.add_time, in line: the call would cost a fifth of the whole, under the lock.
        with self._lock:
            try:
                times = self._entries[key].times[name]
            except (KeyError, TypeError):
                times = self._times(name, key)
            times.count += 1
            times.total_time_ms += time_ms
            if time_ms < times.min_time_ms:  # noqa: PLR1730 - min() takes three times as long
                times.min_time_ms = time_ms
            if time_ms > times.max_time_ms:  # noqa: PLR1730 - likewise
                times.max_time_ms = time_ms
            times.last_time_ms = time_ms
            times.last_timestamp = now
            buckets = times.buckets
            if bucket in buckets:
                buckets[bucket] += 1
            else:
                buckets[bucket] = 1
            if self._spool is not None:
                self._spool.add_time(times, time_ms, now)

    def add_past_time(self, name: str, key: Any, time_ms: float, timestamp: float) -> None:
        """Record a time that another process recorded at `timestamp`, in seconds of Unix time.

        Raises:
            SettingError: As `add_time`.
        """
        with self._lock:
            self._times(name, key).add_time(as_time(name, time_ms), timestamp)

    def time(self, name: str, key: Any = None, *, nested: bool = False) -> OperationTimer:
        """Return a timer that records here, with the arguments of `OperationTimer`."""
        return OperationTimer(self, name, key, nested)

    def get_metrics(self, key: Any) -> Metrics | None:
        """Return a copy of the records of a key, a list of keys or a ProxyStore proxy.

        The key None has the records without a key, and those beyond the bound on keys.
        """
        key = plain_key(key)
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.is_empty():
                return None
            return copy.deepcopy(entry.copy_metrics())

    def aggregate_times(self) -> dict[str, TimeStats]:
        """Return the statistics of each operation over all its keys, with percentiles."""
        with self._lock:
            sums: dict[str, TimeStats] = {}
            for entry in self._entries.values():
                for name, times in entry.times.items():
                    sums.setdefault(name, TimeStats()).add_sums(times)
            for name, stats in sums.items():
                stats.buckets = dict(self._buckets[name])
            return sums

    def aggregate_counters(self) -> dict[str, float]:
        """Return the sum of each counter over all its keys."""
        with self._lock:
            sums: dict[str, float] = {}
            for entry in self._entries.values():
                for name, count in entry.counters.items():
                    sums[name] = sums.get(name, 0) + count.value
            return sums

    def is_empty(self) -> bool:
        """Return whether nothing was recorded."""
        with self._lock:
            return all(entry.is_empty() for entry in self._entries.values())

    def merge(self, other: OperationMetrics) -> None:
        """Add everything that `other` has recorded, as if it had been recorded here.

        What `other` had collected from a spool folder counts as collected here too.
        """
        self.__setstate__(other._snapshot())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy what was recorded, without the lock and the spool."""
        return partial(type(self), self._max_keys, max_names=self._max_names), (), self._snapshot()

    def __setstate__(self, snapshot: _Snapshot) -> None:
        by_key, buckets, sources = snapshot
        with self._lock:
            self._sources |= sources
            for key, metrics in by_key.items():
                self._add_metrics(key, metrics)
            for name, counts in buckets.items():
                self._add_buckets(name, counts)

    def make_spool(self, folder: Path) -> OperationSpool:
        """Return the spool of this recorder."""
        return OperationSpool(folder, partial(self.as_dict, max_keys=None))

    def as_dict(self, *, max_keys: int | None = 0) -> dict[str, Any]:
        """Return everything for JSON.

        Args:
            max_keys: How many keys to list separately; the others are summed up. None for all.
        """
        return codec.to_dict(*self._snapshot()[:2], max_keys)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OperationMetrics:
        """Rebuild a recorder from `as_dict`.

        Raises:
            DocumentError: If this is not what `as_dict` wrote.
        """
        new = cls()
        by_key, buckets = codec.from_dict(data)
        for key, metrics in by_key:
            new._add_metrics(key, metrics)
        for name, counts in buckets.items():
            new._add_buckets(name, counts)
        return new

    def summary_metrics(self) -> dict[str, float]:
        """Return the metrics `ops/<name>/count`, `…/total_ms` and so on, by MLflow's rules.

        A counter gives its sum as `ops/<name>/count`. Only the few hundred operations with the most
        total time become metrics; a warning says how many were recorded.
        """
        return names.summary_metrics(self.aggregate_times(), self.aggregate_counters())

    def _snapshot(self) -> _Snapshot:
        with self._lock:
            by_key = {key: entry.copy_metrics() for key, entry in self._entries.items()}
            buckets = {name: dict(counts) for name, counts in self._buckets.items()}
            own = self._spool.source if self._spool is not None else None
            return by_key, buckets, self._sources | ({own} if own else set())

    def _add_metrics(self, key: Any, metrics: Metrics) -> None:
        for name, times in metrics.times.items():
            self._times(name, key).add_sums(times)
        for name, value in metrics.counters.items():
            self._count(name, key).value += value
        mine, kept = self._entry(key)
        if kept is not None or key is None:
            mine.attributes.update(metrics.attributes)

    def _add_buckets(self, name: str, counts: Buckets) -> None:
        Sketch(self._buckets.setdefault(self._name(name), {})).merge(Sketch(counts))

    def _times(self, name: str, key: Any) -> RecordedTimes:
        entry, key = self._entry(key)
        name = self._name(name)
        times = entry.times.get(name)
        if times is None:
            buckets = self._buckets.setdefault(name, {})
            times = entry.times[name] = RecordedTimes(name, key, buckets)
        return times

    def _count(self, name: str, key: Any) -> Count:
        entry, key = self._entry(key)
        name = self._name(name)
        count = entry.counters.get(name)
        if count is None:
            count = entry.counters[name] = Count(name, key)
        return count

    def _entry(self, key: Any) -> tuple[Entry, Any]:
        """Return the entry of a key, and the key; those of None where the bound is reached."""
        key = plain_key(key)
        entry = self._entries.get(key)
        if entry is not None:
            return entry, key
        if len(self._entries) <= self._max_keys:
            return self._entries.setdefault(key, Entry()), key
        return self._entries[None], None

    def _name(self, name: str) -> str:
        if name in self._names:
            return name
        check_name(name)
        name = hide_secrets(name)
        if name in self._names or len(self._names) < self._max_names:
            self._names.add(name)
            return name
        if not self._warned:
            self._warned = True
            _logger.warning(
                "More than %d names of operations: further ones, such as %r, are summed up as %r. "
                "Put the part that differs into the key.",
                self._max_names, name, names.OTHER,
            )  # fmt: skip
        return names.OTHER
