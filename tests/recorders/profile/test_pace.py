"""The sampler's pace: many samples of a short job, and never much of a job's time."""

from __future__ import annotations

import time

import pytest

from mlflow_perf.recorders.profile import pace
from mlflow_perf.recorders.profile.pace import Pace


def _mean_wait(of: Pace, monkeypatch: pytest.MonkeyPatch, age: float) -> float:
    """Return the mean of many waits of a sampler of an age, in seconds."""
    began = time.monotonic()
    monkeypatch.setattr(pace, "read_monotonic", lambda: began + age)
    waits = [of.next_wait() for _ in range(200)]
    monkeypatch.undo()
    return sum(waits) / len(waits)


@pytest.mark.parametrize(
    ("age", "cost_sec", "share"), [(1, 1e-4, 0.008), (1, 4e-4, 0.008), (500, 8e-4, 0.008)]
)
def test_samples_cost_the_job_less_than_a_hundredth(
    monkeypatch: pytest.MonkeyPatch, age: float, cost_sec: float, share: float
) -> None:
    """The more a sample costs, the fewer are taken; from the first second on."""
    found = Pace(None)
    for _ in range(200):
        found.note(0.0, cost_sec)
    assert cost_sec / _mean_wait(found, monkeypatch, age) <= share * 1.01


def test_a_long_sample_is_followed_by_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside thousands of threads the sampler works a twentieth of the time, whatever its pace."""
    found = Pace(None)
    found.note(0.03, 0.0)
    assert _mean_wait(found, monkeypatch, 1) == pytest.approx(0.6, rel=0.02)
    found.note(0.001, 0.0)
    assert _mean_wait(found, monkeypatch, 1) < 0.05


def test_a_rate_that_is_asked_for_is_kept() -> None:
    """It is the user's choice, up to a tenth of the job's time."""
    found = Pace(200.0)
    assert sum(found.next_wait() for _ in range(200)) == pytest.approx(1.0, rel=0.02)
    for _ in range(400):
        found.note(0.0, 0.01)
    assert sum(found.next_wait() for _ in range(200)) == pytest.approx(20.0, rel=0.02)


def test_samples_that_hold_a_job_up_become_rare_once_it_is_not_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sample costs 4 ms where all CPUs are taken; a short job needs some all the same."""
    found = Pace(None)
    for _ in range(200):
        found.note(0.0, 0.004)
    assert _mean_wait(found, monkeypatch, 2) == pytest.approx(0.05, rel=0.02)
    assert _mean_wait(found, monkeypatch, 10) == pytest.approx(0.25, rel=0.02)
    assert _mean_wait(found, monkeypatch, 60) == pytest.approx(0.5, rel=0.02)


def test_a_displaced_job_waits_for_its_cpu_after_a_sample() -> None:
    """Each loss of a CPU to others is one sign of it; no wait is longer than there was one."""
    found = Pace(None)
    assert found.estimate_wait(0.001, 0.5, 3) == pytest.approx(0.005)
    assert found.estimate_wait(0.001, 0.5, 3) == pytest.approx(0.001)
    assert found.estimate_wait(0.001, 0.002, 4) == pytest.approx(0.002)
