"""What the integrations of training libraries share: replaced functions, times aside, boosters."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any

from mlflow_perf.recorders.steps.loop import Loop, enter, innermost_loop, leave, open_loop


class Patches:
    """Functions of a library that are replaced, and can be put back."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace a function by what `make` returns for it.

        Args:
            owner: Its module or class.
            name: Its name there; nothing happens where there is none.
            make: Returns the new function.
        """
        original = getattr(owner, name, None)
        if original is None or any(owner is o and name == n for o, n, _, _ in self._replaced):
            return
        new = functools.wraps(original)(make(original))
        setattr(owner, name, new)
        self._replaced.append((owner, name, original, new))

    def undo(self) -> None:
        """Put the originals back, but where another library has replaced ours meanwhile."""
        while self._replaced:
            owner, name, original, new = self._replaced.pop()
            if getattr(owner, name, None) is new:
                setattr(owner, name, original)


class Aside:
    """Times a block as a part of the present or the next step, such as an evaluation.

    What runs within the block, other loops included, is not divided further.

    Args:
        name: Name of the part.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: Loop | None = None

    def __enter__(self) -> Aside:
        loop = innermost_loop()
        if loop is not None and not loop.is_aside and not loop.is_divided:
            self._loop = loop
            loop.is_aside = True
            self._start_ns = perf_counter_ns()
        return self

    def __exit__(self, *error: object) -> None:
        if self._loop is not None:
            self._loop.is_aside = False
            self._loop.add(self._name, perf_counter_ns() - self._start_ns)


def time_aside(name: str) -> Callable[[Any], Any]:
    """Return what makes a function that is timed as an `Aside`."""

    def make(original: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with Aside(name):
                return original(*args, **kwargs)

        return timed

    return make


class LoopDriver:
    """Drives the loop `step` of one trainer by the trainer's own events."""

    def __init__(self) -> None:
        self._loop: Loop | None = None
        self._evaluation_ns = 0

    def start(self) -> None:
        """Open the loop; its first item is waited for."""
        self.stop()
        around = innermost_loop()
        if around is not None and around.is_automatic:
            around.drop()  # the pass over the trainer's own loader, from before it was followed
        self._loop = open_loop("step")
        if self._loop is not None:
            enter(self._loop)
            self._loop.wait()

    def begin(self) -> None:
        """Begin a step; a trainer that trained before it was followed begins its loop so."""
        if self._loop is None or self._loop.is_closed:
            self.start()
        if self._loop is not None:
            self._loop.begin()

    def end(self) -> None:
        """End a step."""
        if self._loop is not None:
            self._loop.end()

    def begin_evaluation(self) -> None:
        """Begin an evaluation beside the steps."""
        self._evaluation_ns = perf_counter_ns()

    def end_evaluation(self) -> None:
        """End it; a second call does nothing."""
        if self._loop is not None and self._evaluation_ns:
            self._loop.add("evaluation", perf_counter_ns() - self._evaluation_ns)
        self._evaluation_ns = 0

    def stop(self) -> None:
        """Close the loop."""
        if self._loop is not None:
            leave(self._loop)
            self._loop = None


class LoopDrivers:
    """The drivers of all trainers of a library."""

    def __init__(self) -> None:
        self._drivers: weakref.WeakKeyDictionary[Any, LoopDriver] = weakref.WeakKeyDictionary()

    def drive(self, trainer: Any, method: str | None) -> None:
        """Call a method of the driver of a trainer; None for an event that says nothing."""
        if method is not None:
            getattr(self._drivers.setdefault(trainer, LoopDriver()), method)()


def callback_class(
    base: Any, events: Mapping[str, str], make: Callable[..., Any], *arguments: Any
) -> type:
    """Return a class of callbacks that drive a loop.

    Args:
        base: Class of the library's callbacks.
        events: Method of a callback → method of `LoopDriver`.
        make: Makes such a callback, with the arguments: for ranks that are spawned.
        *arguments: As above.
    """

    class StepCallback(base):  # type: ignore[misc]  # the base is known when the package is
        """Drives a loop of steps by the events of its trainer."""

        def __init__(self) -> None:
            super().__init__()
            self.driver = LoopDriver()

        def __reduce__(self) -> tuple[Any, ...]:
            return make, arguments

    def react(method: str) -> Callable[..., None]:
        def on_event(callback: Any, *_: Any, **__: Any) -> None:
            getattr(callback.driver, method)()

        return on_event

    for event, method in events.items():
        setattr(StepCallback, event, react(method))
    return StepCallback


class BoosterLoops:
    """Follows a class of boosters: each update is a step, and an evaluation after it its part.

    Args:
        updates: Names of the methods that boost once.
        evaluations: Names of the methods that evaluate.
    """

    def __init__(self, updates: tuple[str, ...], evaluations: tuple[str, ...]) -> None:
        self._updates = updates
        self._evaluations = evaluations
        self._patches = Patches()
        self._loops: weakref.WeakKeyDictionary[Any, Loop] = weakref.WeakKeyDictionary()

    def follow(self, booster_class: type) -> None:
        """Replace the methods."""
        for name in self._updates:
            self._patches.replace(booster_class, name, self._time_update)
        for name in self._evaluations:
            self._patches.replace(booster_class, name, self._time_evaluation)

    def unfollow(self) -> None:
        """Put the methods back."""
        self._patches.undo()

    def _find(self, booster: Any) -> Loop | None:
        """Return the loop of a booster in the present session, a new one where there is none."""
        loop = self._loops.get(booster)
        if loop is None or loop.is_closed:
            loop = open_loop("boosting")
            if loop is not None:
                self._loops[booster] = loop
                weakref.finalize(booster, loop.close)
        return loop

    def _time_update(self, original: Any) -> Any:
        def update(booster: Any, *args: Any, **kwargs: Any) -> Any:
            loop = self._find(booster)
            if loop is None or loop.is_aside:  # one update calls another
                return original(booster, *args, **kwargs)
            loop.end(loop.last_ns)
            loop.wait()
            loop.begin()
            loop.is_aside = True
            try:
                return original(booster, *args, **kwargs)
            finally:
                loop.is_aside = False
                loop.last_ns = perf_counter_ns()
                loop.add("update", loop.last_ns - loop.begun_ns)

        return update

    def _time_evaluation(self, original: Any) -> Any:
        def evaluate(booster: Any, *args: Any, **kwargs: Any) -> Any:
            loop = self._loops.get(booster)
            if loop is None or not loop.is_in_step or loop.is_aside:
                return original(booster, *args, **kwargs)
            start_ns = perf_counter_ns()
            loop.is_aside = True
            try:
                return original(booster, *args, **kwargs)
            finally:
                loop.is_aside = False
                loop.last_ns = perf_counter_ns()
                loop.add("evaluation", loop.last_ns - start_ns)

        return evaluate
