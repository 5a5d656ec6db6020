"""When the sampler's thread runs Python code: not while a profiler of the job is on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, repeat
from operator import methodcaller
from typing import Any, NamedTuple

from mlflow_perf.core.threads import Event, Lock
from mlflow_perf.recorders.profile.job_profiler import JobProfiler, look_for_profilers
from mlflow_perf.recorders.profile.stacks import Call

_PATIENCE_SEC = 0.05
_LOOK_SEC, _TRY_SEC = 0.05, 0.005
_HELD, _LATE = "held", "late"
_call: Callable[[Any], Any] = methodcaller("__call__")


class Woken(NamedTuple):
    """How a wait ended.

    Attributes:
        ended: Whether the thread has to end.
        was_profiled: Whether a profiler of the job was on meanwhile.
    """

    ended: bool
    was_profiled: bool


class Turns:
    """The turns of one thread of ours: it runs Python code from one wait to the next.

    Args:
        calm: Called in the job's thread when a profiler of the job comes.
    """

    def __init__(self, calm: Callable[[], object]) -> None:
        self._calm = calm
        self._gate = Lock()
        self._gate.acquire()
        self._turn = Lock()
        self._is_held = False
        self._entered = Event()
        self._marks: deque[bool] = deque(maxlen=1)
        self.profiler = JobProfiler(self._meet)

    def enter(self) -> None:
        """Begin the first turn: the thread calls this first."""
        self._is_held = self._turn.acquire(timeout=_PATIENCE_SEC)
        self._entered.set()

    def leave(self) -> None:
        """End the last turn."""
        if self._is_held:
            self._is_held = False
            self._turn.release()
        self._entered.set()

    def stop(self) -> None:
        """End the thread at its next turn, which begins now."""
        if self._gate.locked():
            self._gate.release()

    def wait(self, seconds: float) -> list[Call]:
        """Return what ends this turn and waits for the next one, all in C.

        The next turn begins after some seconds, and not while a profiler is on. No other thread
        runs between the last look for one and the beginning of the turn.

        Args:
            seconds: How long to wait at least.
        """
        gate, turn = self._gate, self._turn
        self._marks.clear()
        looks = {True: partial(self._marks.append, True), False: partial(turn.acquire, False)}
        # A signal handler of the job may have raised where the job's thread had the turn.
        tries = repeat(_TRY_SEC, round(_PATIENCE_SEC / _TRY_SEC))
        answers: dict[Any, Callable[[], object]] = {
            None: partial(gate.acquire, True, _LOOK_SEC),
            False: partial(next, chain(map(gate.acquire, repeat(True), tries), repeat(_LATE))),
            True: partial(str, _HELD),
        }
        tried = map(_call, map(looks.__getitem__, look_for_profilers()))
        answered = map(_call, map(answers.__getitem__, tried))
        woken = filter(None, chain(map(gate.acquire, (True,), (seconds,)), answered))
        release = (bool, ()) if not self._is_held else (turn.release, ())
        return [release, (next, (woken,))]

    def begin(self, woken: object) -> Woken:
        """Note that a turn has begun.

        Args:
            woken: What the last call of `wait` returned.
        """
        self._is_held = woken == _HELD
        if woken == _LATE:
            self._turn = Lock()
        return Woken(woken is True, bool(self._marks))

    @contextmanager
    def between(self) -> Iterator[None]:
        """Let a turn end first, which takes less than a millisecond; the next one waits."""
        turn = self._turn
        is_held = turn.acquire(timeout=_PATIENCE_SEC)
        try:
            yield
        finally:
            if is_held:
                turn.release()

    @contextmanager
    def _meet(self) -> Iterator[None]:
        """Let the thread come to a wait, in which it stays while the job's profiler is on."""
        self._entered.wait(_PATIENCE_SEC)
        with self.between():
            self._calm()
            yield
