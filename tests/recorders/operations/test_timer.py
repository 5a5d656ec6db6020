"""Rules of Timer and of the timers that record."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest

import mlflow_perf
from mlflow_perf import OperationMetrics, Timer
from mlflow_perf.recorders import current
from mlflow_perf.recorders.operations import OperationTimer

Time = tuple[Callable[..., OperationTimer], OperationMetrics]


@pytest.fixture(params=["bound", "session", "before the session"])
def time(request: pytest.FixtureRequest) -> Iterator[Time]:
    """A function that makes timers, and where they record: three ways that must do the same."""
    recorder = OperationMetrics()
    if request.param == "bound":
        yield recorder.time, recorder
        return
    if request.param == "session":
        current.activate(recorder, folder=None)
        yield mlflow_perf.time, recorder  # type: ignore[misc]
        current.deactivate()
        return

    def make(*args: Any, **kwargs: Any) -> Any:
        timer = mlflow_perf.time(*args, **kwargs)
        current.activate(recorder, folder=None)
        return timer

    def late(*args: Any, **kwargs: Any) -> Any:
        current.deactivate()
        return make(*args, **kwargs)

    yield late, recorder
    current.deactivate()


def _counts(recorder: OperationMetrics) -> dict[str, int]:
    return {name: stats.count for name, stats in recorder.aggregate_times().items()}


class TestTimer:
    """The plain stopwatch, as ProxyStore documents its own."""

    def test_block_is_measured(self) -> None:
        """After its block a timer has the time in three units."""
        with Timer() as timer:
            sum(range(1000))
        assert timer.elapsed_ns > 0
        assert timer.elapsed_ms == timer.elapsed_ns / 1e6
        assert timer.elapsed_s == timer.elapsed_ns / 1e9

    def test_start_and_stop(self) -> None:
        """Start and stop give the timer back; a second stop changes nothing."""
        timer = Timer().start()
        elapsed = timer.stop().elapsed_ns
        assert timer.stop().elapsed_ns == elapsed > 0

    def test_running_timer_has_no_time_yet(self) -> None:
        """Asking a running timer raises RuntimeError; before the start the time is 0."""
        assert Timer().elapsed_ns == 0
        with pytest.raises(RuntimeError, match="running"):
            _ = Timer().start().elapsed_ms


class TestRecording:
    """What a timer records."""

    def test_block(self, time: Time) -> None:
        """A block is recorded once, under its name and key."""
        make, recorder = time
        with make("load", "k"):
            pass
        assert _counts(recorder) == {"load": 1}
        assert recorder.get_metrics("k") is not None

    def test_block_that_raises(self, time: Time) -> None:
        """A block that raises is recorded, and its exception passes through."""
        make, recorder = time
        with pytest.raises(KeyError), make("load"):
            raise KeyError
        assert _counts(recorder) == {"load": 1}

    def test_start_and_stop(self, time: Time) -> None:
        """Start and stop record once, however often stop is called."""
        make, recorder = time
        timer = make("load").start()
        timer.stop()
        timer.stop()
        assert _counts(recorder) == {"load": 1}

    def test_function(self, time: Time) -> None:
        """Each call of a decorated function is recorded, recursive ones too; its name stays."""
        make, recorder = time

        @make("fac")
        def fac(n: int) -> int:
            """Docstring."""
            return n * fac(n - 1) if n else 1

        assert fac(4) == 24
        assert _counts(recorder) == {"fac": 5}
        assert (fac.__name__, fac.__doc__) == ("fac", "Docstring.")

    def test_coroutine(self, time: Time) -> None:
        """A decorated coroutine function stays one, and each await is recorded."""
        make, recorder = time

        @make("fetch")
        async def fetch() -> int:
            await asyncio.sleep(0)
            return 3

        async def both() -> list[int]:
            return list(await asyncio.gather(fetch(), fetch()))

        assert inspect.iscoroutinefunction(fetch)
        assert asyncio.run(both()) == [3, 3]
        assert _counts(recorder) == {"fetch": 2}

    def test_generator(self, time: Time) -> None:
        """A decorated generator yields, takes, throws and returns as before, and counts once."""
        make, recorder = time

        @make("rows")
        def rows() -> Generator[Any, Any, str]:
            got = yield 1
            try:
                yield got
            except ValueError:
                yield "caught"
            return "end"

        assert inspect.isgeneratorfunction(rows)
        generator = rows()
        assert next(generator) == 1
        assert generator.send("sent") == "sent"
        assert generator.throw(ValueError()) == "caught"
        with pytest.raises(StopIteration, match="end"):
            next(generator)
        assert _counts(recorder) == {"rows": 1}

    def test_generator_left_early(self, time: Time) -> None:
        """A generator that its consumer leaves is closed, and recorded once."""
        make, recorder = time
        closed = []

        @make("rows")
        def rows() -> Iterator[int]:
            try:
                yield 1
                yield 2
            finally:
                closed.append(True)

        for _ in rows():
            break
        assert closed == [True]
        assert _counts(recorder) == {"rows": 1}

    def test_async_generator(self, time: Time) -> None:
        """A decorated async generator yields, takes, throws, closes as before, and counts once."""
        make, recorder = time
        seen: list[Any] = []

        @make("rows")
        async def rows() -> AsyncIterator[Any]:
            try:
                seen.append((yield 1))
                yield 2
            except ValueError:
                yield "caught"
            finally:
                seen.append("closed")

        async def consume() -> None:
            generator: Any = rows()
            assert await generator.__anext__() == 1
            assert await generator.asend("sent") == 2
            assert await generator.athrow(ValueError()) == "caught"
            await generator.aclose()
            assert [item async for item in rows()] == [1, 2]

        assert inspect.isasyncgenfunction(rows)
        asyncio.run(consume())
        assert seen == ["sent", "closed", None, "closed"]
        assert _counts(recorder) == {"rows": 2}

    def test_exception_of_a_generator_passes_through(self, time: Time) -> None:
        """An error inside a decorated generator reaches its consumer, and the time is recorded."""
        make, recorder = time

        @make("rows")
        def rows() -> Iterator[int]:
            yield 1
            raise KeyError("k")

        with pytest.raises(KeyError, match="k"):
            list(rows())
        assert _counts(recorder) == {"rows": 1}

    def test_nested_names(self, time: Time) -> None:
        """nested=True puts a name below the nested timers around, and only those."""
        make, recorder = time
        with make("epoch", nested=True), make("plain"), make("load", nested=True):
            pass
        with make("load", nested=True):
            pass
        assert _counts(recorder) == {"epoch": 1, "plain": 1, "epoch.load": 1, "load": 1}


def test_generator_does_not_count_its_consumers_time() -> None:
    """What the consumer does between two values is not the generator's time, nor below its name."""
    recorder = OperationMetrics()

    @recorder.time("rows", nested=True)
    def rows() -> Iterator[int]:
        yield 1
        yield 2

    with Timer() as outer:
        for _ in rows():
            with recorder.time("consume", nested=True):
                sum(range(200_000))
    times = recorder.aggregate_times()
    assert set(times) == {"rows", "consume"}
    assert times["rows"].total_time_ms < outer.elapsed_ms - times["consume"].total_time_ms


def test_nested_names_are_kept_apart_by_task() -> None:
    """Tasks that run in turns each have their own names around."""
    recorder = OperationMetrics()

    async def work(name: str) -> None:
        with recorder.time(name, nested=True):
            await asyncio.sleep(0)
            with recorder.time("inner", nested=True):
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(work("a"), work("b"))

    asyncio.run(main())
    assert set(recorder.aggregate_times()) == {"a", "b", "a.inner", "b.inner"}
