"""A loop whose steps are timed: the wait for each item, the rest, and the parts of it.

This module is written for a low cost per step: a step appends whole numbers to lists, and a few
hundred steps at a time become statistics.
"""

from __future__ import annotations

import os
import sys
import time as clock_module
import weakref
from contextvars import ContextVar
from operator import add
from time import perf_counter_ns

from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.recorders import current, timing
from mlflow_perf.recorders.operations.keys import as_text, hide_secrets
from mlflow_perf.recorders.operations.timer import OperationTimer
from mlflow_perf.recorders.steps.course import CourseRow
from mlflow_perf.recorders.steps.interruptions import Watch
from mlflow_perf.recorders.steps.metrics import StepMetrics
from mlflow_perf.recorders.steps.parts import Part, TaskPart, TwinPart, inside_task
from mlflow_perf.recorders.steps.stats import (
    COMPUTE,
    INPUT,
    LoopRecord,
    StepTimes,
    name_as_part,
    name_nested,
)

_RESERVED = {INPUT, COMPUTE, "step", "rest"}
_MOST_STEPS_HELD = 512
_MAX_PARTS = 40
_FLUSH_NS = 1_000_000_000
_log = get_logger(__name__)
_open: weakref.WeakSet[Loop] = weakref.WeakSet()
_innermost: ContextVar[Loop | None] = ContextVar("mlflow_perf_loop", default=None)
_warned = False


class Loop:
    """One run through a loop: `wait`, then for each item `begin` and `end`, and `close`.

    `Steps` drives it around a `for`; the callback of a training library drives it by itself.

    Args:
        recorder: Where its steps go.
        name: Name of the loop.

    Attributes:
        inside: The part that runs now; None where an event loop runs it, whose tasks differ.
        is_async: Whether an event loop runs it.
        is_closed: Whether it has ended.
        is_in_step: Whether it has an item, and does not wait for one.
        outer: The loop around it.
        parts: Its parts by name; none when it is closed.
        begun_ns: When the present step began.
        last_ns: When the present step ends at the latest, if it was cut off; None for now.
        fetched_ns: The part of the present wait that a loader took, where that is known.
        length_ns: How long it was open; 0 until it is closed.
        is_divided: Whether the code divides its steps into parts by itself.
        is_automatic: Whether it is a guess, which gives way to a trainer's own steps.
        is_aside: Whether it does something that is no step, such as an evaluation.
    """

    def __init__(self, recorder: StepMetrics, name: str) -> None:
        self.name = name
        self.inside: Part | None = None
        self.is_async = _is_in_event_loop()
        self.is_closed = False
        self.outer: Loop | None = None
        self.last_ns: int | None = None
        self.fetched_ns: int | None = None
        self.length_ns = 0
        self.is_divided = False
        self.is_automatic = False
        self.is_aside = False
        self.is_in_step = False
        self.parts: dict[str, Part] = {}
        self._recorder = recorder
        self._inputs_ns: list[int] = []
        self._computes_ns: list[int] = []
        self._piece = LoopRecord()
        self._has_steps = False
        self._watch = Watch()
        self._row_ns = int(recorder.row_sec(name) * 1e9)
        self._opened_ns = self._wait_ns = self.begun_ns = self._row_start_ns = self._flushed_ns = (
            perf_counter_ns()
        )
        self._beside_ns = 0
        _open.add(self)
        recorder.follow(self)

    def wait(self) -> None:
        """Begin to wait for the next item."""
        self._wait_ns = perf_counter_ns()

    def begin(self) -> None:
        """Begin a step: its item has come."""
        self.begun_ns = perf_counter_ns()
        self.is_in_step = True
        if self.fetched_ns is not None:  # the rest of the time between the steps was no wait
            self._beside_ns = max(0, self.begun_ns - self._wait_ns - self.fetched_ns)
            self.fetched_ns = None

    def wait_within(self, time_ns: int) -> None:
        """Count time of the present step as a wait for its items."""
        self._beside_ns -= time_ns

    def end(self, at_ns: int | None = None) -> None:
        """End the step, and begin to wait for the next item.

        Args:
            at_ns: When it ended, on the clock of `perf_counter_ns`; default: now.
        """
        if not self.is_in_step:
            return
        now = perf_counter_ns() if at_ns is None else at_ns
        self.is_in_step = False
        begun, beside = self.begun_ns, self._beside_ns
        self._inputs_ns.append(begun - self._wait_ns - beside)
        self._computes_ns.append(now - begun + beside)
        if beside:
            self._beside_ns = 0
        for part in self.parts.values():
            if total_ns := part.total_ns:
                part.times_ns.append(total_ns)
                part.total_ns = 0
        self.inside = None
        if now - self._row_start_ns >= self._row_ns or len(self._inputs_ns) >= _MOST_STEPS_HELD:
            self._fold(now)
        self._wait_ns = perf_counter_ns()

    def part(self, name: str) -> Part:
        """Return a part of the present step; inside another part, its name has both names."""
        inside = self.find_part()
        if inside is not None:
            name = f"{inside.name}.{name}"
        elif not self.is_in_step:
            name = f"{INPUT}.{name}"  # in the loader's own code
        self.is_divided = True
        found = self.parts.get(name)
        return self._make_part(name) if found is None or found.start_ns else found

    def find_part(self) -> Part | None:
        """Return the part that runs now, in this task; None outside of all."""
        if not self.is_async:
            return self.inside
        found = inside_task.get()
        return found if found is not None and found.is_of(self) else None

    def _make_part(self, name: str) -> Part:
        """Return a new part; `other` for names beyond the bound."""
        if name in self.parts:
            return TaskPart(self, name) if self.is_async else TwinPart(self, self.parts[name])
        if name in _RESERVED:
            name = f"{name}_part"
        if len(self.parts) >= _MAX_PARTS:
            name = "other"
        kind = TaskPart if self.is_async else Part
        return self.parts.setdefault(name, kind(self, name))

    def add(self, name: str, time_ns: int) -> None:
        """Add to a part of the present step, or of the next step between two steps."""
        found = self.parts.get(name) or self._make_part(name)
        found.total_ns += time_ns
        if not self.is_in_step:
            self._beside_ns += time_ns  # it was no wait for the item

    def add_inner(self, loop: Loop) -> None:
        """Add a loop that ran within the present step, as a part with its name."""
        if self.is_in_step and loop.name != self.name:
            name, inside = name_as_part(loop.name), self.find_part()
            self.add(name if inside is None else f"{inside.name}.{name}", loop.length_ns)

    def add_late(self, name: str, time_ns: int) -> None:
        """Add a part to a loop that is closed, such as what is saved after it in this session."""
        if self._recorder is not current.process.steps:
            return
        late = LoopRecord()
        late.add_late(time_ns, {name: time_ns})
        self._recorder.add(self.name, late)

    def close(self) -> None:
        """End the loop. A step that was cut off counts with the time that it took."""
        if self.is_closed:
            return
        self.end(self.last_ns)
        self.is_closed = True
        self.length_ns = perf_counter_ns() - self._opened_ns
        self._fold(perf_counter_ns(), flush=True)
        self.drop()

    def drop(self) -> None:
        """End the loop without its records, because another loop has these steps."""
        self.forget()
        self.is_in_step, self.is_closed = False, True
        self.parts.clear()
        _open.discard(self)

    def flush(self) -> None:
        """Hand over the steps so far; the loop goes on."""
        if self.last_ns is not None:
            self.end(self.last_ns)
        self._fold(perf_counter_ns(), flush=True)

    def _fold(self, now_ns: int, *, flush: bool = False) -> None:
        """Make statistics of the steps that were held, and hand them over about once a second."""
        try:
            self._fold_held(now_ns, flush=flush)
        except Exception as error:  # no fault of ours may end the job's loop
            if is_from_handler(error):
                raise
            self.forget()
            _warn_once("Steps of the loop %r are not recorded: %s", self.name, error)

    def _fold_held(self, now_ns: int, *, flush: bool) -> None:
        piece = self._piece
        # Exchanged, not emptied: the end of a run in another thread may ask for them as well.
        inputs, self._inputs_ns = self._inputs_ns, []
        computes, self._computes_ns = self._computes_ns, []
        if whole := list(map(add, inputs, computes)):
            now = clock_module.time()
            if not piece.step.count:
                piece.began, piece.first_ms = now - sum(whole) / 1e9, whole[0] / 1e6
            piece.step.add_all(whole)
            sums = {}
            held = [(INPUT, inputs), (COMPUTE, computes)]
            for part in list(self.parts.values()):
                held.append((part.name, part.times_ns))
                part.times_ns = []
            for name, times in held:
                if times:
                    piece.parts.setdefault(name, StepTimes()).add_all(times)
                    sums[name] = sum(times) / 1e6
            row = CourseRow(now, len(whole), sum(whole) / 1e6, max(whole) / 1e6, sums)
            piece.course.append(row)
            self._has_steps = True
        if self.is_closed and self._has_steps and self._beside_ns:
            # What ran beside the steps after the last one, such as the last evaluation.
            parts = [part for part in self.parts.values() if part.total_ns]
            late = {p.name: p.total_ns for p in parts if not p.name.startswith(f"{INPUT}.")}
            piece.add_late(self._beside_ns, late)
        self._row_start_ns = now_ns
        is_due = flush or now_ns - self._flushed_ns >= _FLUSH_NS
        if is_due and (piece.step.count or piece.step.total_ms):
            self._flushed_ns = now_ns
            piece.sums = self._watch.look()
            self._piece = LoopRecord()
            self._recorder.add(self.name, piece)
            self._row_ns = int(self._recorder.row_sec(self.name) * 1e9)

    def forget(self) -> None:
        """Drop records that were not handed over; a forked child's parent reports them."""
        self._piece = LoopRecord()
        self._inputs_ns, self._computes_ns = [], []
        for part in self.parts.values():
            part.times_ns = []
            part.total_ns = 0


def open_loop(name: str) -> Loop | None:
    """Return a new loop of the current session; None without one."""
    recorder = current.process.steps
    try:
        return None if recorder is None else Loop(recorder, _name_within(_clean(name)))
    except Exception as error:  # no fault of ours may keep the job from its loop
        if is_from_handler(error):
            raise
        _warn_once("The loop %r is not recorded: %s", as_text(name), error)
        return None


def _name_within(name: str) -> str:
    """Return a loop's name, which is another one in the steps of a loop of that name."""
    around = innermost_loop()
    while around is not None:
        if around.is_in_step and around.name == name:
            return name_nested(name)
        around = around.outer
    return name


def _is_in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")  # a job that has none need not import it
    running = getattr(asyncio, "_get_running_loop", None)
    return running is not None and running() is not None


def innermost_loop() -> Loop | None:
    """Return the innermost loop that this thread or task is in; None outside of all."""
    loop = _innermost.get()
    while loop is not None and loop.is_closed:  # its end came in another task's context
        loop = loop.outer
    return loop


def enter(loop: Loop) -> None:
    """Make a loop the innermost one of this thread or task."""
    loop.outer = innermost_loop()
    _innermost.set(loop)


def leave(loop: Loop) -> None:
    """Close a loop, and make the one around it the innermost one."""
    loop.close()
    if loop.outer is not None and not loop.outer.is_closed:
        loop.outer.add_inner(loop)
    # Not with a token: the end of an asynchronous loop may come in another task's context.
    if _innermost.get() is loop:
        _innermost.set(loop.outer)


def part(name: str) -> Part | OperationTimer | timing.IdleTimer:
    """Return a context manager that times a part of the present step.

    Outside a loop of `steps` the time is recorded as an operation. Parts may be nested.

    Args:
        name: Name of the part, such as `forward`.
    """
    loop = _innermost.get()
    if loop is None:
        return timing.time(name)
    try:
        # The usual case first, at once: this is on the path of every step.
        found = loop.parts[name]
        if found.start_ns == 0 and loop.inside is None and loop.is_in_step and not loop.is_async:
            return found
    # A name that is none is the job's own object, whose hash may raise anything.
    except Exception as error:
        if is_from_handler(error):
            raise
    loop = innermost_loop()
    return timing.time(name) if loop is None else loop.part(_clean(name))


def _clean(name: object) -> str:
    """Return a name as text, with one warning where it is none: the job is running already."""
    if type(name) is str and name:
        return hide_secrets(name)
    text = hide_secrets(as_text(name))
    if not (text and issubclass(type(name), str)):
        _warn_once("The name of a loop or a part is %r: give a string that is not empty.", text)
    return text or "unnamed"


def _warn_once(message: str, *facts: object) -> None:
    global _warned  # noqa: PLW0603 - one warning for each process
    if not _warned:
        _warned = True
        _log.warning(message, *facts)


def _after_fork() -> None:
    for loop in list(_open):
        loop.forget()
    # A loop of the parent's is none of the child's, whose parts become operations.
    _innermost.set(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
