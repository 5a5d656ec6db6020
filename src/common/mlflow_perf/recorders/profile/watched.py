"""What the sampler knows of one thread of the job, and how it splits the time between samples."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import NamedTuple

from mlflow_perf.core.originals import os, time
from mlflow_perf.model.samples import Sample
from mlflow_perf.recorders.profile.stacks import Place

Key = tuple[int | bytes, ...]
"""What identifies a stack."""

_LATE_CPU_SEC = 0.25
_WHOLE = 0.9


class Took(NamedTuple):
    """Wall and CPU seconds of a thread in one stack."""

    wall: float
    cpu: float


_NOTHING = Took(0.0, 0.0)


class Watched:
    """What is known of one thread of the job."""

    __slots__ = (
        "_at_delay", "_computed", "_late", "_native_id", "_thread", "_unread", "at_cpu",
        "clock", "count", "cpu", "cut", "key", "rests", "root", "samples", "wall",
    )  # fmt: skip

    def __init__(self, thread: threading.Thread | None, native_id: int | None, root: str) -> None:
        # Weak: a thread that has ended goes at once, with everything that it holds.
        self._thread = None if thread is None else weakref.ref(thread)
        self.root = root
        # The kernel's encoding of a thread's clock, as pthread_getcpuclockid makes it.
        self._native_id = native_id
        self.clock = None if native_id is None else (~native_id << 3) | 6
        self.at_cpu = 0.0
        self.at_cpu = self.read_cpu()
        self._late = _NOTHING
        self._computed = False
        # Read when it is needed first. The interpreter's lock is let go to read a file, and the
        # thread would go on before its stack has been seen.
        self._at_delay: float | None = None
        self._unread = 0.0
        self.key: Key | None = None
        self.samples: Sequence[Sample] = ()
        self.rests = False
        self.wall = self.cpu = 0.0
        self.count = 0
        self.cut = 0.0  # when its time was given away last, apart from samples

    def is_of(self, thread: threading.Thread | None) -> bool:
        """Return whether this is about that thread; None for one that Python does not know."""
        if self._thread is None or thread is None:
            return self._thread is None and thread is None
        return self._thread() is thread

    @property
    def has_clock(self) -> bool:
        """Whether the CPU time of the thread can be read."""
        return self.clock is not None

    def limit(self, wall: float, now: float) -> float:
        """Return the seconds of `wall`, until `now`, that are not given away yet."""
        return max(0.0, min(wall, now - self.cut))

    def is_ready(self) -> bool:
        """Return whether the thread runs, or waits only for a CPU."""
        return self._read("stat").rpartition(b") ")[2].startswith(b"R")

    def read_cpu(self) -> float:
        """Return the CPU time of the thread; its last known value where it cannot be read."""
        if self.clock is None:
            return 0.0
        try:
            return time.clock_gettime(self.clock)
        except (OSError, AttributeError, OverflowError):  # it has ended; another platform
            self.clock = None
            return self.at_cpu

    def split(
        self,
        wall: float,
        used: float,
        *,
        computes: bool,
        moved: bool,
        whole: bool = False,
        here_sec: float = 0.0,
    ) -> tuple[Took, Took]:
        """Split the time since the last sample between the previous stack and the current one.

        A sampler that waits for a CPU gets one when the job's thread falls asleep. So a late sample
        finds a thread asleep that computed until a moment ago. The time in which the thread had a
        CPU, or waited for one, belongs to the computing stack, the rest to the sleeping one. The
        same holds if the thread is asleep in both samples; otherwise short work would get too
        little time.

        Args:
            wall: Seconds since the last sample.
            used: CPU seconds of the thread since then.
            computes: Whether the thread computes now.
            moved: Whether its stack has changed since the last sample.
            whole: Give all of the wall time to the current stack. In a long job that is right on
                average, and sleeps between two samples are not lost.

            here_sec: Seconds that are known to be the current stack's: a call into C.

        Returns:
            The time of the previous stack, none if it is the same, and that of the current one.
        """
        had, self._computed = self._computed, computes
        if whole:
            self._late = _join(self._late, Took(0.0, used))
            late = self._take_late() if computes or self._late.cpu > _LATE_CPU_SEC else _NOTHING
            return _NOTHING, Took(wall + late.wall, late.cpu)
        delay = self._read_delay(wall, used) if had or computes else 0.0
        if not moved and (used == 0.0 or (had and computes)):
            return _NOTHING, Took(wall, used)
        # Before it was found computing, the thread slept for a part of that wait.
        waited = min(delay, max(0.0, wall - used)) * (1.0 if had else 0.5)
        active = Took(min(wall, used + waited), used)
        asleep = Took(wall - active.wall, 0.0)
        if had and computes:
            part = max(0.0, wall - here_sec) / 2 / wall if wall else 0.5
            before = Took(wall * part, used * part)
            here = Took(wall - before.wall, used - before.cpu)
        elif had or computes:
            before, here = (active, asleep) if had else (asleep, active)
        else:
            # It computed in a stack that was not seen: the next computing stack gets that time.
            before, here, self._late = _NOTHING, asleep, _join(self._late, active)
        if computes or self._late.cpu > _LATE_CPU_SEC:
            here = _join(here, self._take_late())
        if moved and self.key is not None:
            return before, here
        return _NOTHING, _join(before, here)

    def pay_late(self) -> None:
        """Give the current stack the time that is kept for the next computing stack."""
        late = self._take_late()
        self.wall += late.wall
        self.cpu += late.cpu

    def forget(self) -> None:
        """Start again without a stack; the time so far is dropped."""
        self.at_cpu = self.read_cpu()
        self.wall = self.cpu = 0.0
        self.count = 0
        self._late, self.key = _NOTHING, None

    def _take_late(self) -> Took:
        late, self._late = self._late, _NOTHING
        return late

    def _read_delay(self, wall: float, used: float) -> float:
        """Return how long the thread waited for a CPU since the last sample, at least.

        A thread that had a CPU nearly all the time is not asked; the most that it can have waited
        is subtracted later.
        """
        if used > _WHOLE * wall:
            self._unread += max(0.0, wall - used)
            return 0.0
        fields = self._read("schedstat").split()
        unread, self._unread = self._unread, 0.0
        before, self._at_delay = self._at_delay, float(fields[1]) / 1e9 if len(fields) > 1 else 0.0
        return 0.0 if before is None else max(0.0, self._at_delay - before - unread)

    def _read(self, name: str) -> bytes:
        try:
            file = os.open(f"/proc/self/task/{self._native_id}/{name}", os.O_RDONLY)
            try:
                return os.read(file, 200)
            finally:
                os.close(file)
        except OSError:  # it has ended; another platform
            return b""


class Glimpse(NamedTuple):
    """What is seen of a thread at the moment at which the sampler gets the interpreter's lock.

    Attributes:
        now: When, in seconds of the monotonic clock.
        watched: The thread that computed last; None where there is none.
        cpu: Its CPU time, in seconds.
        places: Its stack.
        idle_sec: Seconds since the last sample in which it had no CPU.
    """

    now: float
    watched: Watched | None
    cpu: float
    places: list[Place]
    idle_sec: float


def _join(one: Took, other: Took) -> Took:
    return Took(one.wall + other.wall, one.cpu + other.cpu)
