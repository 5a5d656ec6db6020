"""Rules of decorating a function: it behaves as it does without the decorator."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from mlflow_perf import OperationMetrics
from mlflow_perf.errors import SettingError
from mlflow_perf.recorders.operations.wrap import wrap

Decorate = Callable[[Any], Any]


@pytest.fixture(params=["a block around it", "a timer"])
def decorate(request: pytest.FixtureRequest) -> tuple[Decorate, list[str]]:
    """Both ways to decorate, and a log of the blocks' ends."""
    log: list[str] = []

    @contextmanager
    def block() -> Iterator[None]:
        try:
            yield
        finally:
            log.append("block ended")

    if request.param == "a timer":
        return OperationMetrics().time("decorated"), log
    return lambda function: wrap(function, block), log


def _outcome(act: Callable[[], Any]) -> Any:
    """What a call returns, or the kind and text of what it raises."""
    try:
        return act()
    except BaseException as error:  # noqa: BLE001 - GeneratorExit is one of the answers
        return type(error).__name__, str(error)


def _count(end: str) -> Generator[Any, Any, str]:
    """Yield what is sent; when it is closed it ends, goes on or raises, as `end` says."""
    got: Any = None
    try:
        while True:
            try:
                got = yield got
            except KeyError as error:
                got = error.args[0]
    except GeneratorExit:
        if end == "raises":
            raise
        if end == "goes on":
            yield "caught"
        return "end value"


async def _count_async(end: str) -> AsyncIterator[Any]:
    """The same as `_count`; the clean-up of an async generator waits for something."""
    got: Any = None
    try:
        while True:
            try:
                got = yield got
            except KeyError as error:
                got = error.args[0]
    except GeneratorExit:
        await asyncio.sleep(0)
        if end == "raises":
            raise
        if end == "goes on":
            yield "caught"


@pytest.mark.parametrize("thrown", [None, KeyError, GeneratorExit, StopIteration, OSError])
def test_a_generator_is_sent_thrown_and_closed_as_without_us(
    decorate: tuple[Decorate, list[str]], thrown: type[BaseException] | None
) -> None:
    """Each step answers as that of the bare generator does, on this version of Python."""

    def drive(function: Any, end: str) -> list[Any]:
        generator = function(end)
        answers = [next(generator), generator.send("sent")]
        if thrown is not None:
            answers.append(_outcome(lambda: generator.throw(thrown("x"))))
        return [*answers, _outcome(generator.close), _outcome(lambda: next(generator))]

    decorated = decorate[0](_count)
    for end in ("ends", "goes on", "raises"):
        assert drive(decorated, end) == drive(_count, end)


@pytest.mark.parametrize("thrown", [None, KeyError, GeneratorExit, StopAsyncIteration, OSError])
def test_an_async_generator_is_sent_thrown_and_closed_as_without_us(
    decorate: tuple[Decorate, list[str]], thrown: type[BaseException] | None
) -> None:
    """Each step answers as that of the bare generator does, on this version of Python."""

    def drive(function: Any, end: str) -> list[Any]:
        async def steps() -> list[Any]:
            generator = function(end)
            acts = [partial(generator.asend, None), partial(generator.asend, "sent")]
            acts += [] if thrown is None else [partial(generator.athrow, thrown("x"))]
            answers = []
            for act in [*acts, generator.aclose, generator.__anext__]:
                try:
                    answers.append(await act())
                except BaseException as error:  # noqa: BLE001 - so is GeneratorExit
                    answers.append((type(error).__name__, str(error)))
            return answers

        return asyncio.run(steps())

    decorated = decorate[0](_count_async)
    for end in ("ends", "goes on", "raises"):
        assert drive(decorated, end) == drive(_count_async, end)


def test_clean_up_runs_within_the_block(decorate: tuple[Decorate, list[str]]) -> None:
    """Whether the consumer closes a generator or drops it, its own end comes before the block's."""
    wrap, log = decorate

    @wrap
    def numbers() -> Iterator[int]:
        try:
            yield 1
        finally:
            log.append("cleaned up")

    @wrap
    async def async_numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            log.append("cleaned up")

    for function in (numbers, async_numbers):
        generator = function()
        with suppress(StopIteration):
            next(generator) if function is numbers else generator.asend(None).send(None)
        del generator
        assert log in (["cleaned up"], ["cleaned up", "block ended"])
        log.clear()


def test_a_generator_keeps_nothing_alive(decorate: tuple[Decorate, list[str]]) -> None:
    """What it yields and what is thrown into it goes as soon as its consumer lets it go."""

    class Batch:
        pass

    class ThrownError(Exception):
        pass

    @decorate[0]
    def batches() -> Iterator[Batch]:
        while True:
            yield Batch()

    @decorate[0]
    async def async_batches() -> AsyncIterator[Batch]:
        while True:
            yield Batch()

    async def first(generator: Any) -> weakref.ref[Batch]:
        return weakref.ref(await generator.asend(None))

    def throw(generator: Any) -> weakref.ref[ThrownError]:
        error = ThrownError()
        thrown = weakref.ref(error)
        with suppress(ThrownError):
            if inspect.isgenerator(generator):
                generator.throw(error)
            generator.athrow(error).send(None)
        del error  # its trace has this frame
        return thrown

    gc.disable()
    try:
        generator, async_generator = batches(), async_batches()
        item = weakref.ref(next(generator))
        assert item() is None
        thrown = throw(generator)
        assert thrown() is None
        with pytest.raises(StopIteration) as end:
            first(async_generator).send(None)
        assert end.value.value() is None
        thrown = throw(async_generator)
        assert thrown() is None
    finally:
        gc.enable()


def test_a_loop_closes_open_async_generators_without_a_word(
    decorate: tuple[Decorate, list[str]],
) -> None:
    """The loop closes all at once that it knows: it knows one generator for each decorated one."""
    wrap, log = decorate
    heard: list[Any] = []

    @wrap
    async def numbers(name: str) -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            log.append(name)

    @wrap
    async def more_numbers() -> AsyncIterator[int]:
        try:
            async for number in numbers("inner"):
                yield number
        finally:
            await asyncio.sleep(0)
            log.append("outer")

    async def leave_open() -> list[Any]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
        generators = [numbers("single"), more_numbers()]
        for generator in generators:
            await generator.__anext__()
        return generators

    left = asyncio.run(leave_open())
    assert heard == []
    assert sorted(set(log) - {"block ended"}) == ["inner", "outer", "single"]
    assert [generator.ag_frame for generator in left] == [None, None]


def test_trio_closes_open_async_generators_without_a_word(
    decorate: tuple[Decorate, list[str]],
) -> None:
    """Its end and its dropping of a generator are as for a bare one."""
    trio = pytest.importorskip("trio")
    wrap, log = decorate

    @wrap
    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            log.append("closed")

    async def leave_open() -> Any:
        await numbers().__anext__()  # dropped at once
        generator = numbers()
        await generator.__anext__()
        return generator

    left = trio.run(leave_open)
    assert log.count("closed") == 2
    assert left.ag_frame is None


def test_static_and_class_methods_stay_what_they_are(
    decorate: tuple[Decorate, list[str]],
) -> None:
    """The decorator works above and below `@staticmethod` and `@classmethod`."""
    wrap, _ = decorate

    class Example:
        @wrap
        @staticmethod
        def static(x: int) -> int:
            return x

        @wrap
        @classmethod
        def of_class(cls, x: int) -> tuple[type, int]:
            return cls, x

        @staticmethod
        @wrap
        def below(x: int) -> int:
            return x

    assert (Example.static(1), Example().static(2), Example().below(3)) == (1, 2, 3)
    assert Example.of_class(1) == (Example, 1) == Example().of_class(1)


def test_a_class_is_refused_where_it_is_decorated(decorate: tuple[Decorate, list[str]]) -> None:
    """A function in place of a class could not be a base class; the error says what to do."""
    with pytest.raises(SettingError, match="list is a class: decorate one of its methods"):
        decorate[0](list)


def test_a_callable_object_is_of_the_kind_of_its_call(
    decorate: tuple[Decorate, list[str]],
) -> None:
    """The whole run of an object with an async or a generating `__call__` is in the block."""
    wrap, log = decorate

    class Job:
        async def __call__(self) -> str:
            await asyncio.sleep(0)
            log.append("ran")
            return "done"

    class Numbers:
        def __call__(self) -> Iterator[int]:
            yield 1
            log.append("ran")

    class AsyncNumbers:
        async def __call__(self) -> AsyncIterator[int]:
            yield 1
            log.append("ran")

    async def read(numbers: AsyncIterator[int]) -> list[int]:
        return [number async for number in numbers]

    assert asyncio.run(wrap(Job())()) == "done"
    assert list(wrap(Numbers())()) == [1]
    assert asyncio.run(read(wrap(AsyncNumbers())())) == [1]
    assert log in (["ran"] * 3, ["ran", "block ended"] * 3)


def test_a_function_that_only_makes_a_coroutine_is_named_once(
    decorate: tuple[Decorate, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """A plain decorator below ours hides the async function: its run is in no figure."""

    def retry(function: Any) -> Any:
        @functools.wraps(function)
        def call() -> Any:
            return function()

        return call

    @decorate[0]
    @retry
    async def job() -> str:
        return "done"

    @decorate[0]
    def squares() -> Iterator[int]:
        return (i * i for i in range(3))

    assert [asyncio.run(job()), asyncio.run(job())] == ["done", "done"]
    assert [list(squares()), list(squares())] == [[0, 1, 4]] * 2
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "job returned a coroutine: only the call" in said[0]
    assert "squares returned a generator: only the call" in said[1]


def test_a_plain_function_that_runs_a_coroutine_is_no_mistake(
    decorate: tuple[Decorate, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """A decorator may make an async function a plain one: it has its whole run in the block."""

    def sync(function: Any) -> Any:
        @functools.wraps(function)
        def call() -> Any:
            return asyncio.run(function())

        return call

    @decorate[0]
    @sync
    async def job() -> str:
        return "done"

    assert job() == "done"
    assert caplog.records == []


def test_what_cannot_be_called_is_refused_where_it_is_decorated(
    decorate: tuple[Decorate, list[str]],
) -> None:
    """The error names it and its kind, and says where the decorator belongs."""

    def speed(self: Any) -> int:
        return 1

    name = speed.__qualname__
    for make in (property, functools.cached_property, functools.singledispatchmethod):
        kind = make.__name__
        with pytest.raises(SettingError) as refused:
            decorate[0](make(speed))
        assert str(refused.value) == (
            f"{name} is a {kind}, which cannot be called: put the decorator below @{kind}."
        )
    with pytest.raises(SettingError, match="partialmethod, which cannot be called: decorate the f"):
        decorate[0](functools.partialmethod(speed))
    with pytest.raises(SettingError, match="An object of type list cannot be called: decorate a f"):
        decorate[0]([1, 2])


def test_an_object_whose_name_is_no_text(decorate: tuple[Decorate, list[str]]) -> None:
    """A stand-in answers each attribute with an object; it can be decorated all the same."""

    class Named:
        __name__ = 7

        def __call__(self) -> str:
            return "called"

    assert decorate[0](Named())() == "called"
