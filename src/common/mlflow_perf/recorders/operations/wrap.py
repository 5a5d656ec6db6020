"""Decorators for functions of any kind: a block around each call, or a timer around each step.

Plain, generator, coroutine and async generator functions stay what they are; so do static and class
methods.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter_ns
from typing import Any

from mlflow_perf.errors import SettingError
from mlflow_perf.recorders.operations.nesting import Recorder, nest, unnest

Block = Callable[[], "AbstractContextManager[Any] | None"]
"""Makes the block around a call; None for no block."""


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
        if kind is not None:
            self.record()

    def record(self) -> None:
        """Record the sum."""
        self._recorder.add_time(self._whole_name, self._key, self._elapsed_ns / 1e6)


class _TimedGenerator(Generator[Any, Any, Any]):
    """A generator whose steps are timed. An exception ends it; usually that is StopIteration."""

    def __init__(self, inner: Generator[Any, Any, Any], timer: StepTimer) -> None:
        self._inner = inner
        self._timer = timer

    def send(self, value: Any) -> Any:
        with self._timer:
            return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        with self._timer:
            return self._inner.throw(*error)

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._timer.record()


def wrap(function: Any, block: Block, steps: Callable[[], StepTimer | None] | None = None) -> Any:
    """Return a function of the same kind with a block around each of its calls.

    Args:
        function: The function to wrap.
        block: Makes the block. It is entered at a call, or at the first step of a generator.
        steps: For generators, makes a timer around each step instead of one block around all.

    Raises:
        SettingError: If `function` is a class.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(wrap(function.__func__, block, steps))
    if isinstance(function, type):
        # A function in place of the class could not be a base class or serve `isinstance`.
        raise SettingError(f"{function.__name__} is a class: decorate one of its methods instead.")
    wrapped: Any
    if inspect.isasyncgenfunction(function):
        wrapped = _wrap_async_generator(function, block, steps)
    elif inspect.iscoroutinefunction(function):

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            with _or_nothing(block()):
                return await function(*args, **kwargs)

    elif inspect.isgeneratorfunction(function):

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if steps is None:
                with _or_nothing(block()):
                    return (yield from function(*args, **kwargs))
            timer = steps()
            generator = function(*args, **kwargs)
            return (yield from generator if timer is None else _TimedGenerator(generator, timer))

    else:

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            around = block()
            if around is None:
                return function(*args, **kwargs)
            with around:
                return function(*args, **kwargs)

    return functools.wraps(function)(wrapped)


def _or_nothing(block: AbstractContextManager[Any] | None) -> AbstractContextManager[Any]:
    return nullcontext() if block is None else block


def _wrap_async_generator(
    function: Any, block: Block, steps: Callable[[], StepTimer | None] | None
) -> Any:
    async def wrapped(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        timer = None if steps is None else steps()
        with _or_nothing(block() if steps is None else None):
            inner = function(*args, **kwargs)
            resume = functools.partial(inner.asend, None)
            while True:
                try:
                    with _or_nothing(timer):
                        item = await resume()
                except StopAsyncIteration:
                    return
                try:
                    resume = functools.partial(inner.asend, (yield item))
                except GeneratorExit:
                    try:
                        await inner.aclose()
                    finally:
                        if timer is not None:
                            timer.record()
                    raise
                except BaseException as error:  # noqa: BLE001 - the inner generator must get it
                    resume = functools.partial(inner.athrow, error)

    return wrapped
