"""The parts of a loop's steps: context managers that add up the time within them."""

from __future__ import annotations

from contextvars import ContextVar
from time import perf_counter_ns
from typing import Protocol

inside_task: ContextVar[Part | None] = ContextVar("mlflow_perf_part", default=None)
"""The part of an asynchronous step that the present task is in."""


class PartsHolder(Protocol):
    """What a part knows of its loop: the part that runs now, and all by name."""

    inside: Part | None
    parts: dict[str, Part]


class Part:
    """A part of the steps of a loop: a context manager. Its times within a step add up.

    Attributes:
        name: Its name; within another part, `outer.inner`.
        total_ns: Its time in the present step.
        start_ns: When it began; 0 while it does not run.
        times_ns: Its times in the steps that no statistics hold yet.
    """

    __slots__ = ("_loop", "_outer", "name", "start_ns", "times_ns", "total_ns")

    def __init__(self, loop: PartsHolder, name: str) -> None:
        self._loop = loop
        self._outer: Part | None = None
        self.name = name
        self.total_ns = 0
        self.start_ns = 0
        self.times_ns: list[int] = []

    def is_of(self, loop: PartsHolder) -> bool:
        """Return whether it is a part of this loop."""
        return self._loop is loop

    def __enter__(self) -> Part:
        loop = self._loop
        self._outer = loop.inside
        loop.inside = self
        self.start_ns = perf_counter_ns()
        return self

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        self.total_ns += perf_counter_ns() - self.start_ns
        self.start_ns = 0
        self._loop.inside = self._outer


class TwinPart(Part):
    """A part that is entered once more while it runs, as in a generator."""

    __slots__ = ("_first",)

    def __init__(self, loop: PartsHolder, first: Part) -> None:
        super().__init__(loop, first.name)
        self._first = first

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        self._first.total_ns += perf_counter_ns() - self.start_ns
        self._loop.inside = self._outer


class TaskPart(Part):
    """A part of an asynchronous step, whose tasks are each in a part of their own."""

    __slots__ = ("_first",)

    def __init__(self, loop: PartsHolder, name: str) -> None:
        super().__init__(loop, name)
        self._first: Part = loop.parts.get(name, self)

    def __enter__(self) -> Part:
        self._outer = inside_task.get()
        inside_task.set(self)
        self.start_ns = perf_counter_ns()
        return self

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        self._first.total_ns += perf_counter_ns() - self.start_ns
        self.start_ns = 0
        inside_task.set(self._outer)
