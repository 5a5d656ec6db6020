"""Turning the local times of a monitoring database to Unix time."""

from __future__ import annotations

import itertools
from datetime import datetime
from pathlib import Path

import numpy as np

from mlflow_perf.spans.database.bulk import Ints
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.local_time import (
    Offset,
    machine_offsets,
    offsets_of_run,
    parse_times,
)
from mlflow_perf.spans.importers.monitoring_source import (
    RUN_BITS,
    TRY_BITS,
    MonitoringSource,
    SpanIndex,
)

__all__ = ["Clock", "add_runs"]

# A worker's clock that is off by this much is in another time zone: zones lie on quarters of an
# hour, and no result takes half of that to return.
_QUARTER_HOUR_SEC = 900
_NEVER = (1 << 63) - 1


def add_runs(path: Path, source: MonitoringSource, store: Store) -> None:
    """Fill the table `temp.run`: each run of the database, its scope and its offset from UTC.

    The offset is the one that the run's logs show. A run without logs takes that of the latest run
    before it whose logs show one, or else this machine's own.
    """
    source.execute("run_table")
    rundir = "rundir" if "rundir" in source.columns["workflow"] else "''"
    rows = source.db.execute(f"SELECT run_id, time_began, {rundir} FROM source.workflow")  # noqa: S608 - one of two words of ours
    runs = [(str(run), str(began), str(folder or "")) for run, began, folder in rows]
    offsets_by_time: dict[str, list[Offset]] = {}
    for run, began, folder in runs:
        # Beside the database first: the recorded path is that of the machine of the run.
        name = folder.replace("\\", "/").rstrip("/").rpartition("/")[2]
        for place in (path.parent / name, Path(folder)) if name else ():
            if found := offsets_of_run(place, run, began):
                offsets_by_time[began] = found
                break
    for run, began, _ in runs:
        offsets = offsets_by_time.get(began)
        if offsets is None and offsets_by_time:
            before = (time for time in offsets_by_time if time <= began)
            offsets = offsets_by_time[max(before, default=min(offsets_by_time))][-1:]
        if offsets is None and not (offsets := machine_offsets(began[:19])):
            store.not_read("workflow row whose time_began is not a time")
            offsets = [Offset("", 0)]
        first, change = offsets[0], offsets[1] if offsets[1:] else Offset("", offsets[0].seconds)
        source.runs += 1
        source.changes |= len(offsets) > 1
        scope = store.scope(f"parsl:{run}")
        seconds = (first.seconds * 1_000_000, change.since, change.seconds * 1_000_000)
        source.db.execute("INSERT INTO temp.run VALUES (?, ?, ?, ?, ?)", (run, scope, *seconds))


class Clock:
    """Turns local times to Unix time.

    Attributes:
        shifts: For each try, how many microseconds its worker's clock is ahead of the run's.
    """

    def __init__(self, source: MonitoringSource, tries: SpanIndex) -> None:
        self._source = source
        self._tries = tries
        self.shifts = np.zeros(len(tries.key), dtype=np.int64)
        runs = []
        query = "SELECT scope_id, offset_us, change, later_us FROM temp.run ORDER BY 1"
        for scope, offset, since, later in source.db.execute(query):
            change = int(parse_times(f"{since[:19]}.000000")[0]) if since else _NEVER
            runs.append((scope, offset, change, later))
        self._offsets = np.array(runs, dtype=np.int64).reshape(-1, 4).T

    def to_utc(self, scope: Ints, local: Ints) -> Ints:
        """Return Unix microseconds of local times, by the offsets of their runs."""
        scopes, offset, change, later = self._offsets
        place = np.searchsorted(scopes, scope)
        ahead: Ints = np.where(local >= change[place], later[place], offset[place])
        return local - ahead

    def find_other_zones(self) -> None:
        """Find the workers whose clocks are in another time zone than the submitting process."""
        tries = self._tries
        starts = np.searchsorted(tries.key, self._offsets[0] << RUN_BITS).tolist()
        for start, stop in itertools.pairwise([*starts, len(tries.key)]):
            host = tries.host[start:stop]
            workers, first = np.unique(host, return_index=True)
            last = len(host) - 1 - np.unique(host[::-1], return_index=True)[1]
            # A result may be late, but not that of both the first and the last try of a worker.
            for worker, *ends in np.stack([workers, first, last], axis=1).tolist():
                if not worker:
                    continue
                delays = [d for end in set(ends) for d in self._find_delays(tries.key[start + end])]
                zones = round(-min(delays, key=abs, default=0.0) / _QUARTER_HOUR_SEC)
                if zones:
                    shift = zones * _QUARTER_HOUR_SEC * 1_000_000
                    self.shifts[start:stop][host == worker] = shift
                    self._source.changes = True

    def _find_delays(self, key: int) -> list[float]:
        """Return the seconds from a try's end, by the worker's clock, to its result's return."""
        run, inside = divmod(int(key), 1 << RUN_BITS)
        task, attempt = divmod(inside, 1 << TRY_BITS)
        which = {"scope": run, "task": task, "attempt": attempt}
        delays = []
        for ended, returned in self._source.execute("worker_delay", which):
            try:
                delay = datetime.fromisoformat(returned) - datetime.fromisoformat(ended)
                delays.append(delay.total_seconds())
            except (TypeError, ValueError):
                delays.append(0.0)
        return delays
