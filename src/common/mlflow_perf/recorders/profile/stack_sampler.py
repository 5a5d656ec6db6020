"""The sampling thread: looks where each thread of this process is, and whether it computes.

A thread that computes in Python holds the interpreter's lock, so that another thread sees it only
where it lets go: at its next sleep or read, at the end of a call into C, or after the switch
interval. So the sampler looks at it in the very moment in which it gets the lock.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from mlflow_perf.core.clock import MONOTONIC_CALL, read_monotonic
from mlflow_perf.core.originals import os, sys, time
from mlflow_perf.core.own_cost import as_own, is_brought, note_switches
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.threads import Thread, get_ident, is_own_thread
from mlflow_perf.model.samples import FINEST_SEC, MAIN_THREAD, OTHER_THREADS, Function, Sample
from mlflow_perf.recorders.profile.leader import Leader
from mlflow_perf.recorders.profile.native_threads import NativeThreads, find_callers
from mlflow_perf.recorders.profile.pace import Pace
from mlflow_perf.recorders.profile.stack_names import StackNames
from mlflow_perf.recorders.profile.stacks import (
    Call,
    Place,
    find_obstacle,
    list_idents,
    read_stack,
    read_stack_after,
)
from mlflow_perf.recorders.profile.switch_interval import SwitchInterval
from mlflow_perf.recorders.profile.turns import Turns, Woken
from mlflow_perf.recorders.profile.watched import Glimpse, Watched
from mlflow_perf.recorders.profile.windows import StackWindow

# To find one thread's stack, the interpreter lists those of all threads.
_MOST_LISTED, _LEAST_LOOKS = 50_000, 8
_IDLE_SEC, _LEAST_IDLE_SEC, _IDLE_SEC_PER_THREAD = 1.0, 0.1, 0.02
_SPLIT_UNTIL_SEC, _MOST_PARTS = 1.0, 100
_UNREAD = Function("(not read: a profiler of the job was on)", "", 0, True)
_LEAST_PART, _HELD_PART = 0.05, 0.1

_log = get_logger(__name__)


class StackSampler(Thread):
    """Samples this process for its windows until it is stopped.

    Args:
        rate_hz: Samples per second; default: many at first, then fewer.
        root: The root above the main thread's stacks.

    Attributes:
        interval: The interpreter's switch interval, while the sampler works.
    """

    def __init__(self, rate_hz: float | None = None, *, root: str = MAIN_THREAD) -> None:
        super().__init__(name="mlflow-perf-stacks")
        self._roots = (root, OTHER_THREADS if root == MAIN_THREAD else root)
        main = threading._main_thread  # type: ignore[attr-defined]  # noqa: SLF001
        self._leader = Leader()
        # A library that replaces threads by coroutines hides the true main thread.
        idents = list_idents() or [0]
        self._main = main.ident if main.ident in idents else idents[-1]
        self._windows: tuple[StackWindow, ...] = ()
        self._names = StackNames()
        self._watched: dict[int, Watched] = {}
        self._native = NativeThreads(self._roots[1])
        self._hot = 0
        self.interval = SwitchInterval()
        self._turns = Turns(self.interval.restore)
        self._began = self._last = read_monotonic()
        self._pace = Pace(rate_hz)
        self._end: float | None = None
        self._epoch = time.time() - self._began

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: When the system has no room for one more.
        """
        self._turns.profiler.watch()
        try:
            super().start()
        except RuntimeError:
            self.give_back()
            raise

    def attach(self, window: StackWindow) -> None:
        """Sample for a window too, from its release on."""
        self._windows += (window,)

    def release(self, window: StackWindow) -> None:
        """Note that the block of a window begins at this moment, in this thread."""
        with self._turns.between():
            if not any(one.is_open for one in self._windows):
                if self._end is not None:  # of a block whose window is still there
                    self._finish()
                    self._end = None
                # A call into C may keep the interpreter's lock from now on: at the first sample,
                # a thread's clock now is all that tells how much of its time was the block's.
                self._hot = get_ident()
                for ident in list_idents():
                    self._find(ident)
                for watched in [*self._watched.values()]:
                    watched.forget()
                self._last = window.begin = read_monotonic()
                self._native.forget(self._last)
            else:
                window.begin = self._cut()

    def note_end(self, window: StackWindow) -> None:
        """Take no further sample, if nobody else needs one: the window's block ends now."""
        if self._is_only(window):
            self._end = window.end = read_monotonic()
            return
        with self._turns.between():
            window.end = self._cut()

    def _cut(self) -> float:
        """Give this thread's time until now to its last stack: a block begins or ends within it."""
        now = read_monotonic()
        if (watched := self._find(get_ident())) is not None:
            cpu = watched.read_cpu()
            watched.wall += watched.limit(max(0.0, now - self._last), now)
            watched.cpu += max(0.0, cpu - watched.at_cpu)
            watched.cut, watched.at_cpu, watched.key = now, cpu, None
            self._write(watched, now)
        return now

    def detach_last(self, window: StackWindow) -> bool:
        """Sample no longer for a window; end the thread with the last one.

        Returns:
            Whether the thread goes on.
        """
        if self._is_only(window):
            self.stop()
        self._windows = tuple(one for one in self._windows if one is not window)
        return bool(self._windows)

    def _is_only(self, window: StackWindow) -> bool:
        return all(one is window for one in self._windows)

    def stop(self) -> None:
        """End the thread, in milliseconds."""
        self._turns.stop()
        self.join(1.0)
        self.give_back()

    def give_back(self) -> None:
        """Undo what was changed in the interpreter for this sampler."""
        self._turns.profiler.restore()
        self.interval.restore()

    @as_own()
    def work(self) -> None:
        """Sample until `stop`; a fault of ours ends the sampling and nothing else."""
        try:
            # Bound here, because the job may replace it by a mock.
            from resource import RUSAGE_SELF, RUSAGE_THREAD, getrusage
        except ImportError:  # another platform
            return
        try:
            self._turns.enter()
            obstacle, usage = find_obstacle(), getrusage(RUSAGE_THREAD)
            # It may let go of the lock, so it is asked between samples.
            while not self._leader.has_ended(read_monotonic()):
                due = read_monotonic() + (wait := self._pace.next_wait())
                woken, asked, glimpse = self._wait(wait)
                idents = list_idents()
                if obstacle := obstacle or ("" if idents else find_obstacle()):
                    _log.warning(
                        "The job's stacks are sampled no longer: in %s, reading those of other "
                        "threads can end it. MLFLOW_PERF_PROFILE=0 silences this.", obstacle,
                    )  # fmt: skip
                # The timer wakes this thread once. If it slept again, it waited for the lock.
                before, usage = usage, getrusage(RUSAGE_THREAD)
                if woken.was_profiled or woken.ended or obstacle:
                    self._finish(unread=woken.was_profiled)
                    if woken.ended or obstacle:
                        return
                    continue
                slept = usage.ru_nvcsw - before.ru_nvcsw
                waited = slept > 1
                # Beside our own, those of the thread that let go of the lock and took it again.
                note_switches(slept + 2 if waited else slept)
                late = max(0.0, glimpse.now - due - asked)
                self._sample(glimpse, idents, wakes=slept, late_sec=late if waited else 0.0)
                before, usage = usage, getrusage(RUSAGE_THREAD)
                kept = usage.ru_nvcsw == before.ru_nvcsw
                used_sec = sum(usage[:2]) - sum(before[:2])  # its CPU time, as user and system
                cost_sec = read_monotonic() - glimpse.now if kept else used_sec
                if waited:
                    displaced = getrusage(RUSAGE_SELF).ru_nivcsw - usage.ru_nivcsw
                    cost_sec += self._pace.estimate_wait(late, glimpse.idle_sec, displaced)
                self._pace.note(used_sec, cost_sec)
            self._finish()
        # The job goes on, with fewer samples, whatever its frames and threads are like.
        except Exception:  # noqa: BLE001 - see above
            _log.warning("The job's stacks are sampled no longer.", exc_info=True)
        finally:
            self.give_back()
            self._turns.leave()

    def _wait(self, wait_sec: float) -> tuple[Woken, float, Glimpse]:
        """Wait, and look at the thread that computed last as soon as this one has the lock.

        The other thread asks for it again, and would soon be in its next call into C. A block that
        it begins or ends meanwhile waits for the sample.

        Returns:
            How the wait ended, the switch interval during the wait in seconds, and what is seen.
        """
        watched = self._watched.get(self._hot)
        calls: list[Call] = [
            *self._turns.wait(wait_sec),
            (sys.getswitchinterval, ()),
            MONOTONIC_CALL,
        ]
        if self.interval.is_set:
            calls.append((sys.setswitchinterval, (self.interval.CALM_SEC,)))
        first = len(calls)
        returned: list[Any] = []
        places: list[Place] = []
        if watched is not None and watched.has_clock:
            calls.append((time.clock_gettime, (watched.clock,)))
        with suppress(OSError):  # its clock has gone with the thread
            places = read_stack_after(self._hot, calls, returned)
        woken = self._turns.begin(returned[1])
        asked, now = returned[2:4]
        if woken.was_profiled:
            self.interval.restore()
        self.interval.note(asked)
        glimpse = Glimpse(now, None, 0.0, [], 0.0)
        if watched is not None and (cpu := returned[first:]):
            idle_sec = watched.limit(now - self._last, now) - (cpu[0] - watched.at_cpu)
            glimpse = Glimpse(now, watched, cpu[0], places, max(0.0, idle_sec))
        return woken, asked, glimpse

    def _sample(
        self, glimpse: Glimpse, listed: Sequence[int], *, wakes: int = 0, late_sec: float = 0.0
    ) -> None:
        idents = set(listed)
        if self._end is not None or not idents:
            return
        now = glimpse.now
        wall, self._last = now - self._last, now
        busy: list[tuple[Watched, float, int]] = []
        for ident in idents - {get_ident()}:
            is_new = ident not in self._watched
            watched = self._find(ident)
            if watched is None:
                continue
            if is_new:  # it began since the last sample, or an hour ago in code that is not Python
                watched.at_cpu = max(0.0, watched.at_cpu - wall)
                used = watched.read_cpu() - watched.at_cpu
                # When is unknown: half of the time is right on average.
                watched.cut = now - max(used, wall / 2 if watched.has_clock else 0.0)
            cpu = glimpse.cpu if watched is glimpse.watched else watched.read_cpu()
            used, watched.at_cpu = max(0.0, cpu - watched.at_cpu), cpu
            if used > 0.0 or not watched.rests:
                busy.append((watched, used, ident))
            else:
                self._add(watched, now, watched.limit(wall, now), 0.0)
        looks = max(_LEAST_LOOKS, _MOST_LISTED // len(idents))
        if len(busy) > looks:  # the others keep their time until their turn comes
            busy.sort(key=lambda one: one[1] + one[0].wall, reverse=True)
            for watched, used, _ in busy[looks:]:
                watched.wall += watched.limit(wall, now)
                watched.cpu += used
        self._look_closer(busy[:looks], glimpse, wall, waited=wakes > 1, late_sec=late_sec)
        if self._native.note(sum(used for _, used, _ in busy), now) > 0.0:
            held = self.interval.is_set and late_sec > _HELD_PART * wall
            callers = find_callers(
                busy, [*self._watched.values()], now, waited=wakes > 1, held=held
            )
            self._native.give(callers, self._windows, self._epoch)
        self._native.look_for_more(idents)
        for ident in self._watched.keys() - idents:
            (ended := self._watched.pop(ident)).pay_late()
            self._write(ended, now - wall)
        used_sec, hot = max(((used, ident) for _, used, ident in busy), default=(0.0, 0))
        if used_sec > 0.0:
            self._hot = hot
        # One that wakes up now and then to look at something does not wait for the lock.
        working = sum(used > _LEAST_PART * used_sec for _, used, _ in busy)
        self.interval.choose(working, wakes)

    def _find(self, ident: int) -> Watched | None:
        """Return a thread of the job; None for one of ours."""
        if is_own_thread(ident):
            return None
        watched = self._watched.get(ident)
        # A library that replaces threads by coroutines replaces the list of threads, too.
        thread = threading._active.get(ident)  # type: ignore[attr-defined]  # noqa: SLF001
        if watched is None or not watched.is_of(thread):
            # One of ours that only begins is known by its class alone.
            if isinstance(thread, Thread) or is_brought(thread):
                return None
            is_main = ident == self._main
            # After a fork Python goes on to name the parent's thread.
            native = os.getpid() if is_main else getattr(thread, "native_id", None)
            root = self._roots[0 if is_main else 1]
            if watched is not None:
                self._write(watched, self._last)
            watched = self._watched[ident] = Watched(thread, native, root)
            self._native.leave_out(watched.clock)
        return watched

    def _look_closer(
        self,
        busy: Sequence[tuple[Watched, float, int]],
        glimpse: Glimpse,
        wall: float,
        *,
        waited: bool,
        late_sec: float,
    ) -> None:
        """Take the stacks of the threads that ran since the last sample, and say which compute.

        A thread that computes outside the interpreter's lock runs on beside this one, or would if
        it had a CPU. One that computes in Python holds the lock, so that this one had to wait: for
        the end of the call into C that it was in, where no other thread waits for the lock.
        """
        now = glimpse.now
        stacks = []
        for watched, _, ident in busy:
            places = glimpse.places if watched is glimpse.watched else read_stack(ident)
            named = self._names.name(ident, places, watched.root) if places else None
            stacks.append(named or (watched.key or (), watched.samples))  # the thread has ended
        most = max((used for _, used, _ in busy), default=0.0)
        passed = read_monotonic() - now
        whole = now - self._began > _SPLIT_UNTIL_SEC
        for (watched, used, _), (key, samples) in zip(busy, stacks, strict=True):
            runs = watched.read_cpu() - watched.at_cpu > 0.3 * passed
            held = waited and used > 0.25 * most
            computes = used > 0.0 and (runs or held or watched.is_ready())
            moved = key != watched.key
            before, here = watched.split(
                watched.limit(wall, now), used, computes=computes, moved=moved, whole=whole,
                here_sec=late_sec if held and self.interval.is_set else 0.0,
            )  # fmt: skip
            if moved:
                watched.wall, watched.cpu = watched.wall + before.wall, watched.cpu + before.cpu
                self._write(watched, now - here.wall)
                watched.key, watched.samples = key, samples
            watched.rests = used == 0.0 and watched.has_clock
            self._add(watched, now, here.wall, here.cpu)

    def _add(self, watched: Watched, end: float, wall: float, cpu: float) -> None:
        watched.wall, watched.cpu = watched.wall + wall, watched.cpu + cpu
        watched.count += 1
        # A process that is killed loses what a thread has waited since; of many threads, to write
        # that often would take too long.
        idle_sec = min(_IDLE_SEC, max(_LEAST_IDLE_SEC, _IDLE_SEC_PER_THREAD * len(self._watched)))
        if watched.wall >= idle_sec or not watched.rests:
            self._write(watched, end)

    def _write(self, watched: Watched, end: float) -> None:
        """Hand over what a thread did until `end` in the stack where it was seen last."""
        if not (samples := watched.samples):
            return  # its stack has not been seen yet
        wall, amounts = watched.wall, (watched.wall, watched.cpu, watched.count)
        watched.wall, watched.cpu, watched.count = 0.0, 0.0, 0
        for window in self._windows if wall > 0.0 else ():
            window.add_part(samples, (end - wall, end), self._epoch, amounts)

    def _finish(self, *, unread: bool = False) -> None:
        """Add the time since the last sample to the stacks of that sample.

        Args:
            unread: Add it to a row of its own: a profiler of the job was on, and no stack was read.
        """
        now = read_monotonic() if self._end is None else self._end
        begin, self._last, wall = self._last, now, max(0.0, now - self._last)
        every = [*self._watched.values()]
        self._native.note(sum(one.read_cpu() - one.at_cpu for one in every), now)
        self._native.finish(every, self._windows, self._epoch)
        for watched in every:
            cpu = max(0.0, min(watched.read_cpu() - watched.at_cpu, wall))
            if watched.samples and unread:
                watched.pay_late()
                self._write(watched, begin)
                watched.samples = (Sample(watched.root, 0, (_UNREAD,)),)
                # In parts, so that a phase has its own.
                parts = min(_MOST_PARTS, math.ceil(wall / FINEST_SEC))
                for i in range(parts):
                    watched.wall, watched.cpu = wall / parts, cpu / parts
                    self._write(watched, begin + (i + 1) / parts * wall)
                watched.forget()
            elif watched.samples:
                watched.pay_late()
                self._add(watched, now, watched.limit(wall, now), cpu)
                self._write(watched, now)
