"""Decorators for functions of any kind: a block around each call, or a timer around each step.

Plain, generator, coroutine and async generator functions stay what they are; so do static and class
methods.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter_ns
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.errors import SettingError
from mlflow_perf.recorders.operations.nesting import Recorder, nest, unnest

Block = Callable[[], "AbstractContextManager[Any] | None"]
"""Makes the block around a call; None for no block."""

Steps = Callable[[], "StepTimer | None"]
"""Makes the timer of a generator's steps; None for no timer."""

_log = get_logger(__name__)
_RUN_LATER: dict[type, str] = {
    CoroutineType: "a coroutine",
    GeneratorType: "a generator",
    AsyncGeneratorType: "an async generator",
}


class StepTimer(AbstractContextManager[None]):
    """Adds up the times of one generator's steps, and records the sum when the generator ends.

    What the consumer does between two values is not the generator's time, and the consumer's timers
    are not nested below the generator's.
    """

    def __init__(self, recorder: Recorder, name: str, key: Any, nested: bool) -> None:
        self._recorder = recorder
        self._name = self._whole_name = name
        self._key = key
        self._nested = nested
        self._elapsed_ns = 0

    def __enter__(self) -> None:
        if self._nested:
            self._whole_name, self._token = nest(self._name)
        self._start_ns = perf_counter_ns()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._elapsed_ns += perf_counter_ns() - self._start_ns
        if self._nested:
            unnest(self._whole_name, self._token)
        if kind is not None:  # an exception ends the generator; usually that is StopIteration
            self._recorder.add_time(self._whole_name, self._key, self._elapsed_ns / 1e6)


def wrap(function: Any, block: Block, steps: Steps | None = None) -> Any:
    """Return a function of the same kind with a block around each of its calls.

    Args:
        function: The function to wrap, or an object that can be called.
        block: Makes the block. It is entered at a call, or at the first step of a generator.
        steps: For generators, makes a timer around each step instead of one block around all.

    Raises:
        SettingError: If `function` is a class, or cannot be called.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(wrap(function.__func__, block, steps))
    _refuse_uncallable(function)

    def is_kind(test: Callable[[object], bool]) -> bool:
        return test(function) or test(type(function).__call__)

    if is_kind(inspect.isasyncgenfunction):
        wrapped = _wrap_async_generator(function, block, steps)
    elif is_kind(inspect.iscoroutinefunction):
        wrapped = _wrap_coroutine(function, block)
    elif is_kind(inspect.isgeneratorfunction):
        wrapped = _wrap_generator(function, block, steps)
    else:
        wrapped = _wrap_plain(function, block)
    try:
        return functools.wraps(function)(wrapped)
    except TypeError:  # an object whose `__name__` is no text
        return functools.wraps(function, assigned=("__doc__",))(wrapped)


def _refuse_uncallable(function: Any) -> None:
    if isinstance(function, type):
        # A function in place of the class could not be a base class or serve `isinstance`.
        raise SettingError(f"{function.__name__} is a class: decorate one of its methods instead.")
    if callable(function):
        return
    kind = type(function).__name__
    if not hasattr(function, "__get__"):
        raise SettingError(f"An object of type {kind} cannot be called: decorate a function.")
    is_partial = isinstance(function, functools.partialmethod)
    advice = "decorate the function in it" if is_partial else f"put the decorator below @{kind}"
    raise SettingError(f"{_name(function)} is a {kind}, which cannot be called: {advice}.")


def _name(function: Any) -> str:
    """Return the name of a function, of that in a property or the like, or else of the type."""
    inner = getattr(function, "fget", None) or getattr(function, "func", None) or function
    return str(getattr(inner, "__qualname__", type(function).__qualname__))


def _or_nothing(block: AbstractContextManager[Any] | None) -> AbstractContextManager[Any]:
    return nullcontext() if block is None else block


def _wrap_plain(function: Any, block: Block) -> Any:
    is_first = True  # only the first call is checked: each check would cost time

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_first
        around = block()
        if around is None:
            return function(*args, **kwargs)
        with around:
            result = function(*args, **kwargs)
        if is_first:
            is_first = False
            if type(result) in _RUN_LATER:
                _log.warning(
                    "%s returned %s: only the call was measured, not the work that is done later. "
                    "Decorate the inner function that does it, directly above its `def`.",
                    _name(function),
                    _RUN_LATER[type(result)],
                )
        return result

    return wrapped


def _wrap_coroutine(function: Any, block: Block) -> Any:
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        with _or_nothing(block()):
            return await function(*args, **kwargs)

    return wrapped


def _wrap_generator(function: Any, block: Block, steps: Steps | None) -> Any:
    """Wrap a generator function, with each step passed on by hand.

    `yield from` would turn a thrown GeneratorExit into `close()` and lose the value of that.
    """

    def wrapped(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        timer = None if steps is None else steps()
        with _or_nothing(block() if steps is None else None):
            inner = function(*args, **kwargs)
            send = resume = inner.send
            given, items = None, []
            while True:
                try:
                    if timer is None:
                        items.append(resume(given))
                    else:
                        with timer:
                            items.append(resume(given))
                except StopIteration as end:
                    return end.value
                finally:
                    given = None  # the frame is in the error's trace: it would keep itself alive
                try:
                    given = yield items.pop()  # a variable would keep the item alive
                    resume = send
                except BaseException as error:  # noqa: BLE001 - the inner generator must get it
                    given, resume = error, inner.throw

    return wrapped


def _wrap_async_generator(function: Any, block: Block, steps: Steps | None) -> Any:
    """Wrap an async generator function, as `_wrap_generator` does."""

    async def wrapped(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        timer = None if steps is None else steps()
        with _or_nothing(block() if steps is None else None):
            inner = function(*args, **kwargs)
            step: Any = _first_step(inner)
            items = []
            while True:
                try:
                    if timer is None:
                        items.append(await step)
                    else:
                        with timer:
                            items.append(await step)
                except StopAsyncIteration:
                    return
                finally:
                    step = None
                try:
                    step = inner.asend((yield items.pop()))
                except BaseException as error:  # noqa: BLE001 - the inner generator must get it
                    step = inner.athrow(error)

    return wrapped


def _first_step(inner: AsyncGenerator[Any, Any]) -> Awaitable[Any]:
    """Return the first step of an async generator that the loop does not get to know.

    At its end the loop closes the generators that it knows, all at once: the outer one has to be
    the only one to close the inner one.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return inner.asend(None)
    finally:
        sys.set_asyncgen_hooks(*hooks)
