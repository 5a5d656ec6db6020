"""What the integrations of training libraries share: replaced functions, times aside, boosters."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from mlflow_perf.recorders.steps.loop import Loop, innermost_loop, open_loop


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
