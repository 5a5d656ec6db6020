"""The fakes for tests: a clock, a reader and a sink that do what a test says."""

from __future__ import annotations

import threading

import pytest

from mlflow_perf.records import Kind
from mlflow_perf.testing import FakeClock, FakeReader, RecordingSink


def test_a_fake_clock_moves_only_when_it_is_waited_on_or_advanced() -> None:
    """Waiting moves it by the whole timeout; after `stop_after` the event is set."""
    clock, event = FakeClock(now=100.0, stop_after=2.0), threading.Event()
    assert (clock.time(), clock.monotonic()) == (100.0, 0.0)
    clock.advance(0.5)
    assert not clock.wait(event, 1.0)
    assert (clock.time(), clock.monotonic()) == (101.5, 1.5)
    assert clock.wait(event, 1.0)
    assert clock.wait(event, 1.0)
    assert clock.monotonic() == 2.5, "a set event is not waited for"


def test_a_fake_reader_gives_its_rows_in_turn_and_repeats_the_last() -> None:
    """An exception among the rows is raised, and a function among them is called."""
    reader = FakeReader([{"a": 1.0}, OSError("gone"), lambda: {"a": 2.0}], counters=["a"])
    report: dict[str, float] = {}
    reader.read(report)
    assert report == {"a": 1.0}
    with pytest.raises(OSError, match="gone"):
        reader.read(report)
    for _ in range(2):
        reader.read(report)
        assert report == {"a": 2.0}
    assert reader.reads == 4
    assert [c.kind for c in reader.columns if c.name == "a"] == [Kind.COUNTER]
    reader.close()
    assert reader.closed


def test_a_recording_sink_remembers_metrics_by_node() -> None:
    """The last value of a key counts."""
    sink = RecordingSink()
    sink.log_metric("a", 1.0)
    sink.log_metric("a", 2.0, step=3)
    sink.log_metric("a", 4.0, step=3)
    assert sink.metrics == [("a", 1.0, 0), ("a", 2.0, 3), ("a", 4.0, 3)]
    assert sink.of_node(3) == {"a": 4.0}
