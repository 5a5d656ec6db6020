"""Readers of a job whose limits change while it runs: made anew, their counters going on.

Imports base and limits. A pod can be resized in place, a quota rewritten, an affinity narrowed:
what is measured from then on is measured against what holds from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers.base import Reader
from mlflow_perf.readers.cgroup.limits import Owned
from mlflow_perf.records import Column, Kind

__all__ = ["CurrentLimits", "RebuiltReader"]

# Looking costs 0.1 to 0.3 ms, mostly for files of several control groups.
_LOOK_EVERY_SEC = 10.0


class CurrentLimits:
    """What the job owns, looked up again now and then.

    Args:
        look_up: Tells it.
        clock: Monotonic seconds.
    """

    def __init__(
        self, look_up: Callable[[], Owned], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look_up, self._clock = look_up, clock
        self._newest, self._looked = look_up(), clock()

    def now(self) -> Owned:
        """Return what the job owns, as of the last ten seconds."""
        if self._clock() - self._looked >= _LOOK_EVERY_SEC:
            self._looked = self._clock()
            found = self._look_up()
            # A process that has ended has no affinity any more: what it owned it did own.
            if found.cpus is not None or self._newest.cpus is None:
                self._newest = found
        return self._newest


class RebuiltReader:
    """A reader that is made anew when what the job owns has changed.

    Args:
        make: Makes it, from what the job owns.
        limits: What the job owns.
        columns: All that any of the readers made may tell.

    Raises:
        SourceUnavailableError: As `make` does.
    """

    def __init__(
        self, make: Callable[[Owned], Reader], limits: CurrentLimits, columns: Sequence[Column]
    ) -> None:
        self._make, self._limits = make, limits
        self._of = limits.now()
        self._inner: Reader | None = make(self._of)
        self.name, self.columns = self._inner.name, columns
        self._counters = {column.name for column in columns if column.kind is Kind.COUNTER}
        self._totals: dict[str, float] = {}
        self._before: dict[str, float] = {}

    @property
    def inner(self) -> Reader | None:
        """The present reader; None while there is no such source any more."""
        return self._inner

    def read(self, report: dict[str, float]) -> None:
        """Put the present reader's values into the report, counters as if it had always been it."""
        own: dict[str, float] = {}
        if self._inner is not None:
            self._inner.read(own)
        for name in self._counters & own.keys():
            growth = own[name] - self._before.get(name, 0.0)
            self._before[name] = own[name]
            own[name] = self._totals[name] = self._totals.get(name, 0.0) + max(0.0, growth)
        report.update(own)
        if (now := self._limits.now()) != self._of:
            self._renew(now)

    def _renew(self, now: Owned) -> None:
        self._of, self._before = now, {}
        self.close()
        try:
            self._inner = self._make(now)
        except SourceUnavailableError:
            return
        # Some count from boot, some from when they were made: from here on only growth counts.
        self._inner.read(self._before)

    def close(self) -> None:
        """Close the present reader."""
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.close()
