"""The CPU time of threads that Python does not know, such as those of BLAS and OpenMP."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence

from mlflow_perf.core.clock import read_monotonic
from mlflow_perf.core.originals import open_file, os, time
from mlflow_perf.core.thread_list import list_threads
from mlflow_perf.core.threads import KERNEL_NAME
from mlflow_perf.model.samples import NATIVE_THREADS, Sample
from mlflow_perf.recorders.profile.watched import Watched
from mlflow_perf.recorders.profile.windows import StackWindow

# The process's CPU time without that of known threads: as much is left to rounding, and to threads
# of ours that are not asked. To list the threads takes longer than to read their clocks.
_LITTLE_SEC, _MUCH_SEC = 0.001, 0.005
_LONGEST_SEC = 0.5
_RUNS_PART, _USED_PART = 0.6, 0.1
_WAITING = (
    "threading.py", "queue.py", "selectors.py", "socket.py", "ssl.py", "subprocess.py",
    "concurrent/", "asyncio/", "multiprocessing/", "uvloop/",
)  # fmt: skip


class NativeThreads:
    """Measures these threads, and keeps their time until it is known who waits for them.

    Args:
        root: The root above the time of which that stays unknown.
    """

    def __init__(self, root: str) -> None:
        self._samples = (Sample(root, 0, (NATIVE_THREADS,)),)
        self._clocks: dict[int, float] = {}
        self._caller: Watched | None = None
        self.forget(0.0)

    def forget(self, now: float) -> None:
        """Begin again at this moment."""
        self._process_sec, self._sampler_sec = time.process_time(), math.inf
        self._unknown_sec = self._kept_sec = 0.0
        self._since = self._noted = now
        self._clocks = {clock: _read_clock(clock, 0.0) for clock in self._clocks}

    def leave_out(self, clock: int | None) -> None:
        """Note that Python knows the thread that has a clock."""
        self._clocks.pop(clock or 0, None)

    def note(self, known_sec: float, now: float) -> float:
        """Keep what these threads have used since the last call, in the sampler's thread.

        Only where the process has used more than the known threads, the clocks are read. Python's
        own threads that have ended are in that too, and are not counted.

        Args:
            known_sec: CPU seconds of the job's known threads since then.
            now: This moment, in seconds of the monotonic clock.

        Returns:
            CPU seconds that are kept.
        """
        process_sec, sampler_sec = time.process_time(), time.thread_time()
        known_sec += max(0.0, sampler_sec - self._sampler_sec)
        unknown_sec = process_sec - self._process_sec - known_sec
        self._process_sec, self._sampler_sec = process_sec, sampler_sec
        self._unknown_sec = max(0.0, self._unknown_sec + unknown_sec)
        if self._kept_sec == 0.0:
            self._since = self._noted
        self._noted = now
        # An idle pool of many threads costs nothing.
        clocks = [] if self._unknown_sec < _LITTLE_SEC else [*self._clocks.items()]
        for clock, before in clocks:
            used_sec = _read_clock(clock, 0.0) - before
            if used_sec < 0.0:  # it has ended, and its number may be another thread's
                del self._clocks[clock]
            else:
                self._clocks[clock] += used_sec
                self._keep(used_sec)
        return self._kept_sec

    def look_for_more(self, idents: Iterable[int]) -> None:
        """Find threads that have begun, where much time is unknown; their time is kept from then.

        The interpreter's lock is let go meanwhile.

        Args:
            idents: The idents of all threads that Python knows.
        """
        # A thread that is being started may be one of Python's, or ours.
        if self._unknown_sec > _MUCH_SEC and not threading._limbo:  # type: ignore[attr-defined]  # noqa: SLF001
            for clock in _list_unknown(idents) - self._clocks.keys():
                self._clocks[clock] = used_sec = _read_clock(clock, 0.0)
                self._keep(min(used_sec, self._unknown_sec))
            self._unknown_sec = 0.0

    def _keep(self, used_sec: float) -> None:
        self._kept_sec += used_sec
        self._unknown_sec = max(0.0, self._unknown_sec - used_sec)

    def give(
        self, callers: Sequence[Watched], windows: Iterable[StackWindow], epoch: float
    ) -> None:
        """Give what is kept to the stack that these threads work for.

        Args:
            callers: The threads that may be in a call into C that waits for them.
            windows: The windows that get the time.
            epoch: Unix time at which the monotonic clock was 0.
        """
        if not callers and self._noted - self._since < _LONGEST_SEC:
            return  # the next sample may find it
        self._caller = callers[0] if len(callers) == 1 else None
        self._hand_over(windows, epoch)

    def finish(
        self, threads: Sequence[Watched], windows: Iterable[StackWindow], epoch: float
    ) -> None:
        """Give what is kept to the thread that got the time before, at the end."""
        if self._caller not in threads:
            self._caller = None
        # The block may have ended a while ago.
        most_sec = (self._noted - self._since) * len(self._clocks)
        self._kept_sec = min(self._kept_sec, most_sec)
        self._hand_over(windows, epoch)

    def _hand_over(self, windows: Iterable[StackWindow], epoch: float) -> None:
        samples: Sequence[Sample] = self._samples
        if self._caller is not None and self._caller.samples:
            samples = [
                one._replace(path=(*one.path, NATIVE_THREADS)) for one in self._caller.samples
            ]
        used_sec, self._kept_sec = self._kept_sec, 0.0
        for window in windows if used_sec > 0.0 else ():
            window.add_part(samples, (self._since, self._noted), epoch, (0.0, used_sec, 0))


def find_callers(
    busy: Sequence[tuple[Watched, float, int]],
    every: Sequence[Watched],
    now: float,
    *,
    waited: bool,
    held: bool,
) -> list[Watched]:
    """Return the threads whose call into C native threads may work for.

    A thread that runs beside the sampler, which has the interpreter's lock, is in such a call.
    Where the sampler had to wait for the lock, the thread that had it computes in Python, or
    is in a long call that keeps it. Where it did not, and nobody runs, a thread that waits in a
    call is meant.

    Args:
        busy: The threads that have computed since the last sample, the CPU seconds that each has
            used, and its ident.
        every: All threads of the job.
        now: When these were read, in seconds of the monotonic clock.
        waited: Whether the sampler had to wait for the lock.
        held: Whether a call into C kept it.
    """
    if any(not one.has_clock for one in every):
        return []  # one of the native threads may be Python's
    passed_sec = read_monotonic() - now
    runs = [
        one
        for one, used, _ in busy
        if used > 0.0 and one.read_cpu() - one.at_cpu > _RUNS_PART * passed_sec
    ]
    if runs:
        return runs
    if waited:
        most = max((used for _, used, _ in busy), default=0.0)
        return [one for one, used, _ in busy if held and used > _USED_PART * most]
    return [one for one in every if one.samples and not _is_waiting(one.samples)]


def _is_waiting(samples: Sequence[Sample]) -> bool:
    """Return whether a stack waits for another thread of Python, or for an event."""
    leaf = samples[0].path[-1] if samples[0].path else None
    return len(samples) > 1 or bool(leaf and leaf.is_library and leaf.file.startswith(_WAITING))


def _read_clock(clock: int, otherwise: float) -> float:
    try:
        return time.clock_gettime(clock)
    except OSError:  # the thread has ended
        return otherwise


def _list_unknown(idents: Iterable[int]) -> set[int]:
    """Return the clocks of the threads that are neither Python's nor ours."""
    alive = set(idents)
    known = {getattr(one, "native_id", None) for one in list_threads() if one.ident in alive}
    known.add(os.getpid())
    clocks: set[int] = set()
    try:
        names = os.listdir("/proc/self/task")
    except OSError:  # a sandbox without procfs
        return clocks
    for name in names:
        number = int(name)
        if number in known:
            continue
        try:
            with open_file(f"/proc/self/task/{number}/comm", "rb", 0) as file:
                is_ours = file.read().strip() == KERNEL_NAME
        except OSError:
            continue
        if not is_ours:
            clocks.add((~number << 3) | 6)
    return clocks
