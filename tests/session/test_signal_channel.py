"""How a signal comes to the thread that waits for it."""

from __future__ import annotations

import pytest

from mlflow_perf.session import signal_channel
from mlflow_perf.session.signal_channel import REST_SEC, Pace, SignalChannel


def test_a_thread_rests_only_after_many_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty at once; then one for each rest, until a while has passed."""
    now = 100.0
    monkeypatch.setattr(signal_channel, "read_monotonic", lambda: now)
    pace = Pace()
    assert [pace.must_rest() for _ in range(21)] == [False] * 20 + [True]
    now += 2.5 * REST_SEC
    assert [pace.must_rest() for _ in range(2)] == [False, True]
    now += 100.0
    assert [pace.must_rest() for _ in range(1000)] == [False] * 20 + [True] * 980
    now += 2.5 * REST_SEC
    assert [pace.must_rest() for _ in range(2)] == [False, True]


def test_a_wait_for_signals_ends_in_time_or_when_the_channel_is_closed() -> None:
    """None is not the end."""
    channel = SignalChannel()
    assert channel.read(0.001) is None
    channel.write(15)
    assert channel.read(60) == bytes([15])
    channel.write(1)
    assert channel.read() == bytes([1])
    channel.close()
    assert channel.read(0.001) == b""
