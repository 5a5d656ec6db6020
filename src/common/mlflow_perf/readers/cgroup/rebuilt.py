"""Readers that are rebuilt when the job's limits change, while their counters continue.

A pod can be resized in place, a quota rewritten, an affinity narrowed. From then on the job is
measured against the new limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlflow_perf.core.originals import time
from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers.base import Reader
from mlflow_perf.readers.cgroup.limits import Owned
from mlflow_perf.records import Column, Kind

# A look-up costs 0.1 to 0.3 ms, mostly for the files of several control groups.
_LOOK_EVERY_SEC = 10.0


class CurrentLimits:
    """What the job owns, looked up again every ten seconds.

    Args:
        look_up: Returns the present limits of the job.
        clock: Monotonic seconds.
    """

    def __init__(
        self, look_up: Callable[[], Owned], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look_up, self._clock = look_up, clock
        self._newest, self._looked = look_up(), clock()

    def now(self) -> Owned:
        """Return the limits of the job, at most ten seconds old."""
        if self._clock() - self._looked >= _LOOK_EVERY_SEC:
            self._looked = self._clock()
            found = self._look_up()
            # A process that has ended has no affinity any more; keep its last one.
            if found.cpus is not None or self._newest.cpus is None:
                self._newest = found
        return self._newest


class RebuiltReader:
    """A reader that is made again whenever the job's limits have changed.

    Args:
        make: Makes the inner reader from the job's limits.
        limits: The job's limits.
        columns: All columns that any inner reader may fill.

    Raises:
        SourceUnavailableError: As `make` does.
    """

    def __init__(
        self, make: Callable[[Owned], Reader], limits: CurrentLimits, columns: Sequence[Column]
    ) -> None:
        self._make, self._limits = make, limits
        self._owned = limits.now()
        self._inner: Reader | None = make(self._owned)
        self.name, self.columns = self._inner.name, columns
        self._counters = {column.name for column in columns if column.kind is Kind.COUNTER}
        self._totals: dict[str, float] = {}
        self._before: dict[str, float] = {}

    @property
    def inner(self) -> Reader | None:
        """The present inner reader; None while its source does not exist."""
        return self._inner

    def read(self, report: dict[str, float]) -> None:
        """Put the inner reader's values into the report; counters continue across rebuilds."""
        values: dict[str, float] = {}
        if self._inner is not None:
            self._inner.read(values)
        for name in self._counters & values.keys():
            growth = values[name] - self._before.get(name, 0.0)
            self._before[name] = values[name]
            values[name] = self._totals[name] = self._totals.get(name, 0.0) + max(0.0, growth)
        report.update(values)
        now = self._limits.now()
        if now is not self._owned and now != self._owned:
            self._owned, self._before = now, {}
            self.close()
            try:
                self._inner = self._make(now)
            except SourceUnavailableError:
                return
            # Some readers count from boot, some from when they were made: only growth counts.
            self._inner.read(self._before)

    def close(self) -> None:
        """Close the inner reader."""
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.close()
