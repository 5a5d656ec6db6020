"""A source that may block is asked in a thread, and costs at most a warning."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from mlflow_perf.errors import MissingDependencyError
from mlflow_perf.readers.background import Background


@pytest.mark.parametrize(
    "error", [MissingDependencyError("nvidia-ml-py", "gpu"), OSError("a sick driver")]
)
def test_a_source_that_cannot_be_opened_is_one_warning(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """The warning is one line with the reason, without a traceback of our own code."""

    def fail() -> Callable[[], int]:
        raise error

    source = Background(fail, name="perf-test", patience_sec=30.0)
    source._thread.join(30.0)
    assert source.newest() is None
    source.close()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert str(error) in record.message
    assert record.exc_info is None


def test_the_newest_answer_is_returned_without_a_long_wait() -> None:
    """A question that hangs costs the patience; the answer before it is returned."""
    release, answers = threading.Event(), iter([1, 2])

    def ask() -> int:
        answer = next(answers)
        if answer == 2:
            release.wait(30)
        return answer

    source = Background(lambda: ask, name="perf-test")
    assert source.newest(patience_sec=30.0) == 1
    assert source.newest(patience_sec=0.0) == 1
    release.set()
    source.close()


def test_a_failed_question_has_no_answer_and_the_next_one_has() -> None:
    """After an exception there is no answer; the source is asked again next time."""
    answers: Iterator[OSError | int] = iter([OSError("busy"), 3])
    closed = threading.Event()

    def ask() -> int:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    source = Background(lambda: ask, name="perf-test", patience_sec=30.0, on_close=closed.set)
    assert source.newest() is None
    assert source.newest() == 3
    source.close()
    assert closed.is_set()
