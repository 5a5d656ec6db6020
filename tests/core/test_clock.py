"""The clocks."""

from __future__ import annotations

import threading
import time

import pytest

from mlflow_perf.core.clock import Clock, SystemClock


def test_the_system_clock_is_the_machines() -> None:
    """Its times are those of `time`, and `wait` returns whether the event is set."""
    clock: Clock = SystemClock()
    before = time.monotonic(), time.time()
    assert clock.monotonic() >= before[0]
    assert clock.time() >= before[1]
    event = threading.Event()
    assert not clock.wait(event, 0.0)
    event.set()
    assert clock.wait(event, 30.0)


def test_a_job_that_replaces_the_clock_moves_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block with freezegun in it lasted 50 years."""
    before = SystemClock().monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: 1577836800.0)
    assert 0.0 <= SystemClock().monotonic() - before < 60.0
