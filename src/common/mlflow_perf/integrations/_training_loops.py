"""Shared by the integrations of training libraries: replaced functions, callbacks, boosters."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter_ns
from types import ModuleType
from typing import Any, Generic, TypeVar

from mlflow_perf.recorders.steps.loop import Loop, enter, innermost_loop, leave, open_loop

V = TypeVar("V")


class IdentityMap(Generic[V]):
    """What belongs to objects of the job while they live; the job's `__hash__` is not called."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Any], V]] = {}

    def get(self, owner: Any) -> V | None:
        """Return what belongs to an object; None without anything."""
        found = self._held.get(id(owner))
        return found[1] if found is not None and found[0]() is owner else None

    def add(self, owner: Any, value: V) -> V:
        """Keep and return what belongs to an object from now on."""
        number, held = id(owner), self._held

        def forget(ref: weakref.ref[Any]) -> None:
            found = held.get(number)  # another object may have the number by now
            if found is not None and found[0] is ref:
                del held[number]

        held[number] = weakref.ref(owner, forget), value
        return value

    def drop(self, owner: Any) -> None:
        """Forget what belongs to an object."""
        self._held.pop(id(owner), None)


class Patches:
    """Functions of a library that are replaced, and can be put back."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace a function of a module or class by what `make` returns for it, if it is there."""
        original = getattr(owner, name, None)
        if original is None or any(owner is o and name == n for o, n, _, _ in self._replaced):
            return
        new = functools.wraps(original)(make(original))
        setattr(owner, name, new)
        self._replaced.append((owner, name, original, new))

    def undo(self) -> None:
        """Restore the originals, except where another library has replaced ours meanwhile."""
        while self._replaced:
            owner, name, original, new = self._replaced.pop()
            if getattr(owner, name, None) is new:
                setattr(owner, name, original)


@contextlib.contextmanager
def aside(name: str) -> Iterator[None]:
    """Time a block, or a decorated function, as a part of the present or the next step.

    What runs within, other loops included, is not divided further.
    """
    loop = innermost_loop()
    if loop is None or loop.is_aside or loop.is_divided:
        yield
        return
    loop.is_aside = True
    start_ns = perf_counter_ns()
    try:
        yield
    finally:
        loop.is_aside = False
        loop.add(name, perf_counter_ns() - start_ns)


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


class StepCallback:
    """Drives a loop of steps by the events of its trainer; mixed into a library's own callbacks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.driver = LoopDriver()


class TrainerEvents(Patches):
    """Drives a loop for each trainer of a library, by the events that its callbacks get.

    Args:
        methods: Event → method of `LoopDriver`.
    """

    def __init__(self, methods: Mapping[str, str]) -> None:
        super().__init__()
        self._methods = methods
        self._drivers: IdentityMap[LoopDriver] = IdentityMap()

    def follow(self, owner: Any, name: str) -> None:
        """Follow the function that calls all callbacks for an event: `(trainer, event, …)`."""

        def make(original: Any) -> Any:
            def tell(trainer: Any, event: str, *args: Any, **kwargs: Any) -> Any:
                method = self._methods.get(event)
                if method and not any(isinstance(c, StepCallback) for c in trainer.callbacks):
                    driver = self._drivers.get(trainer) or self._drivers.add(trainer, LoopDriver())
                    getattr(driver, method)()
                with aside("logging") if event == "on_log" else contextlib.nullcontext():
                    return original(trainer, event, *args, **kwargs)

            return tell

        self.replace(owner, name, make)

    def make_class(self, base: Any, make: Callable[..., Any], *arguments: Any) -> type:
        """Return a class of callbacks, on the library's `base`, that drive the loop of one trainer.

        `make` makes such a callback from the arguments, in ranks that are spawned.
        """

        def react(method: str) -> Callable[..., None]:
            return lambda callback, *_, **__: getattr(callback.driver, method)()

        reactions: dict[str, Any] = {e: react(method) for e, method in self._methods.items()}
        reactions["__reduce__"] = lambda _: (make, arguments)
        return type("StepCallback", (StepCallback, base), reactions)


class BoosterLoops(Patches):
    """Follows boosters: a call of `updates` is a step, a later call of `evaluations` its part."""

    def __init__(self, updates: tuple[str, ...], evaluations: tuple[str, ...]) -> None:
        super().__init__()
        self._updates = updates
        self._evaluations = evaluations
        self._loops: IdentityMap[Loop] = IdentityMap()
        self._latest: Loop | None = None

    def follow(self, module: ModuleType) -> None:
        """Follow every booster of this process; `module` has their class, `Booster`."""
        for name in self._updates:
            self.replace(module.Booster, name, self._time_update)
        for name in self._evaluations:
            self.replace(module.Booster, name, self._time_evaluation)

    def _time_update(self, original: Any) -> Any:
        def update(booster: Any, *args: Any, **kwargs: Any) -> Any:
            around = innermost_loop()
            if around is not None and around.is_divided:  # by the job's code
                return original(booster, *args, **kwargs)
            loop = self._loops.get(booster)
            if loop is None or loop.is_closed:  # of an earlier session
                loop = open_loop("boosting")
                if loop is not None:
                    self._loops.add(booster, loop)
                    weakref.finalize(booster, loop.close)
            if loop is None or loop.is_aside:  # one update calls another
                return original(booster, *args, **kwargs)
            # Callbacks ran since, but in a cross-validation the updates of others, too.
            loop.end(None if self._latest is loop else loop.last_ns)
            loop.wait()
            loop.begin()
            loop.is_aside = True
            try:
                return original(booster, *args, **kwargs)
            finally:
                loop.is_aside = False
                self._latest = loop
                loop.last_ns = perf_counter_ns()
                loop.add("update", loop.last_ns - loop.begun_ns)
                if around is not None and around.is_in_step:
                    around.add(loop.name, loop.last_ns - loop.begun_ns)

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
                took_ns = perf_counter_ns() - start_ns
                # Others have had their updates between: those of a cross-validation take turns.
                is_next = self._latest is loop
                loop.last_ns = (start_ns if is_next else loop.last_ns or start_ns) + took_ns
                loop.add("evaluation", took_ns)
                self._latest = loop

        return evaluate
