"""The clocks."""

from __future__ import annotations

import threading
import time

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
