"""Rules of measuring our own overhead."""

from __future__ import annotations

import pytest

from mlflow_perf.selftest.overhead import measure_overhead


@pytest.mark.e2e
def test_the_overhead_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each figure of the overhead is a finite number that some work took."""
    monkeypatch.setattr("mlflow_perf.selftest.overhead._SLICES", 2)
    found = measure_overhead()
    assert found["cpu_per_sample_us"] > 1
    assert found["core_share_pct"] == pytest.approx(found["cpu_per_sample_us"] / 1e4)
    assert {"start_ms", "stop_ms", "slowdown_pct", "memory_mb"} <= found.keys()
