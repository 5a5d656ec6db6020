"""Rules of decorating a function: it behaves as it does without the decorator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
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


def test_an_async_generator_is_sent_thrown_and_closed_as_without_us(
    decorate: tuple[Decorate, list[str]],
) -> None:
    """What is sent and thrown into it arrives, and its clean-up runs within the block."""
    wrap, log = decorate

    @wrap
    async def echo() -> AsyncIterator[Any]:
        got: Any = None
        try:
            while True:
                try:
                    got = yield got
                except KeyError as error:
                    got = error.args[0]
        finally:
            await asyncio.sleep(0)
            log.append("cleaned up")

    async def drive() -> list[Any]:
        generator = echo()
        answers = [await generator.asend(None), await generator.asend("sent")]
        answers.append(await generator.athrow(KeyError("thrown")))
        await generator.aclose()
        return answers

    assert asyncio.run(drive()) == [None, "sent", "thrown"]
    assert log in (["cleaned up"], ["cleaned up", "block ended"])


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
