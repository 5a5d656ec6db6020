"""Timing the calls of a function of any kind, or putting a block around each.

Plain, generator, coroutine or async generator; static and class methods stay what they are.

Imports only `path` and the errors. A generator's time is that which it spends itself: what its
consumer does between two values is not the generator's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from time import perf_counter_ns
from typing import Any

from mlflow_perf.errors import SettingError
from mlflow_perf.recorders.operations.path import Recorder, nest, unnest

__all__ = ["wrap", "wrap_in"]

_Find = Callable[[], Recorder | None]
"""Answers where to record at the time of a call; None says to measure nothing."""


def wrap(function: Any, name: str, key: Any, *, nested: bool, find: _Find) -> Any:
    """Return a function of the same kind whose calls are timed.

    Args:
        function: What to wrap.
        name: Name of the operation.
        key: Key of the operation.
        nested: Whether the name is put below that of the nested timer around.
        find: Asked at each call for the recorder.

    Raises:
        SettingError: If it is a class.
    """
    operation = _Operation(name, key, nested, find)
    return _of_function(function, lambda plain: _timed(plain, operation))


def wrap_in(function: Any, block: Callable[[], AbstractContextManager[Any]]) -> Any:
    """Return a function of the same kind each of whose calls is a block of its own.

    Args:
        function: What to wrap.
        block: Makes the block; entered at a call, or at the first step of a generator.

    Raises:
        SettingError: If it is a class.
    """
    return _of_function(function, lambda plain: functools.wraps(plain)(_blocked(plain, block)))


def _of_function(function: Any, decorate: Callable[[Any], Any]) -> Any:
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(decorate(function.__func__))
    if isinstance(function, type):
        # A function in its place could be neither a base nor asked for by `isinstance`.
        raise SettingError(f"{function.__name__} is a class: decorate one of its methods instead.")
    return decorate(function)


def _timed(function: Any, operation: _Operation) -> Any:
    if inspect.isasyncgenfunction(function):
        return _async_generator(function, operation)
    if inspect.iscoroutinefunction(function):
        return _coroutine(function, operation)
    if inspect.isgeneratorfunction(function):
        return _generator(function, operation)
    return _plain(function, operation)


def _blocked(function: Any, block: Callable[[], AbstractContextManager[Any]]) -> Any:
    if inspect.isasyncgenfunction(function):
        return _blocked_async_generator(function, block)
    if inspect.iscoroutinefunction(function):

        async def blocked(*args: Any, **kwargs: Any) -> Any:
            with block():
                return await function(*args, **kwargs)

    elif inspect.isgeneratorfunction(function):

        def blocked(*args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]  # a generator
            with block():
                return (yield from function(*args, **kwargs))

    else:

        def blocked(*args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]  # a plain function
            with block():
                return function(*args, **kwargs)

    return blocked


def _blocked_async_generator(
    function: Any, block: Callable[[], AbstractContextManager[Any]]
) -> Any:
    async def blocked(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        with block():
            inner = function(*args, **kwargs)
            resume = inner.asend(None)
            while True:
                try:
                    item = await resume
                except StopAsyncIteration:
                    return
                try:
                    resume = inner.asend((yield item))
                except GeneratorExit:
                    await inner.aclose()
                    raise
                except BaseException as error:  # noqa: BLE001 - the inner generator must see it, as without us
                    resume = inner.athrow(error)

    return blocked


class _Operation:
    """What is known of the operation before a call."""

    __slots__ = ("find", "key", "name", "nested")

    def __init__(self, name: str, key: Any, nested: bool, find: _Find) -> None:
        self.name = name
        self.key = key
        self.nested = nested
        self.find = find


def _plain(function: Any, operation: _Operation) -> Any:
    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        recorder = operation.find()
        if recorder is None:
            return function(*args, **kwargs)
        with _Call(operation, recorder):
            return function(*args, **kwargs)

    return timed


def _coroutine(function: Any, operation: _Operation) -> Any:
    @functools.wraps(function)
    async def timed(*args: Any, **kwargs: Any) -> Any:
        recorder = operation.find()
        if recorder is None:
            return await function(*args, **kwargs)
        with _Call(operation, recorder):
            return await function(*args, **kwargs)

    return timed


def _generator(function: Any, operation: _Operation) -> Any:
    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        recorder = operation.find()
        if recorder is None:
            return (yield from function(*args, **kwargs))
        return (yield from _TimedGenerator(function(*args, **kwargs), operation, recorder))

    return timed


class _Steps:
    """Adds up the time of the steps of one generator, and records it once at the end.

    It stands inside the nested name only while a step runs: the consumer's own timers are not below
    the generator's.
    """

    def __init__(self, operation: _Operation, recorder: Recorder) -> None:
        self._operation = operation
        self._recorder = recorder
        self._name = operation.name
        self._elapsed_ns = 0

    def __enter__(self) -> None:
        if self._operation.nested:
            self._name, self._token = nest(self._operation.name)
        self._start = perf_counter_ns()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._elapsed_ns += perf_counter_ns() - self._start
        if self._operation.nested:
            unnest(self._name, self._token)
        if kind is not None:
            self.record()

    def record(self) -> None:
        """Record the sum."""
        self._recorder.add_time(self._name, self._operation.key, self._elapsed_ns / 1e6)


class _Call(_Steps):
    """The one step of a call that is no generator."""

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(None)
        self.record()


class _TimedGenerator(Generator[Any, Any, Any]):
    """A generator whose steps are timed; it ends by an exception, StopIteration mostly."""

    def __init__(
        self, inner: Generator[Any, Any, Any], operation: _Operation, recorder: Recorder
    ) -> None:
        self._inner = inner
        self._steps = _Steps(operation, recorder)

    def send(self, value: Any) -> Any:
        with self._steps:
            return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        with self._steps:
            return self._inner.throw(*error)

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._steps.record()


def _async_generator(function: Any, operation: _Operation) -> Any:
    @functools.wraps(function)
    async def timed(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        recorder = operation.find()
        inner = function(*args, **kwargs)
        steps = _Steps(operation, recorder) if recorder is not None else None
        resume = functools.partial(inner.asend, None)
        while True:
            try:
                item = await _step(resume, steps)
            except StopAsyncIteration:
                return
            try:
                resume = functools.partial(inner.asend, (yield item))
            except GeneratorExit:
                await _close(inner, steps)
                raise
            except BaseException as error:  # noqa: BLE001 - the inner generator must see it, as without us
                resume = functools.partial(inner.athrow, error)

    return timed


async def _step(resume: Callable[[], Any], steps: _Steps | None) -> Any:
    if steps is None:
        return await resume()
    with steps:
        return await resume()


async def _close(inner: AsyncGenerator[Any, Any], steps: _Steps | None) -> None:
    try:
        await inner.aclose()
    finally:
        if steps is not None:
            steps.record()
