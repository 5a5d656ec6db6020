"""The selftest's verdicts, and a real load through it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.selftest.check import CHECKS, Check, passed, run_checks
from mlflow_perf.selftest.loads import LOADS
from mlflow_perf.selftest.overhead import measure_overhead


def test_every_check_has_its_load_and_every_load_its_check() -> None:
    """The table of checks and that of loads name each other."""
    assert [spec.load for spec in CHECKS] == list(LOADS)
    assert all(0 < spec.bound_pct <= 10 for spec in CHECKS)


@given(st.floats(1e-3, 1e6), st.floats(-50, 50), st.floats(0.1, 20))
def test_a_check_passes_within_its_bound_only(true: float, error: float, bound: float) -> None:
    """The error is signed and in per cent of the truth; what is beyond the bound fails."""
    check = Check("x", "s", true, true * (1 + error / 100), bound)
    assert check.error_pct == pytest.approx(error, abs=1e-6)
    if abs(abs(error) - bound) > 1e-6:
        assert check.passed == (abs(error) < bound)


def test_one_failure_fails_all_and_nothing_at_all_is_no_pass() -> None:
    """What could not run decides nothing; a selftest of which nothing ran has not passed."""
    good, bad = Check("a", "s", 1.0, 1.0, 1.0), Check("b", "s", 1.0, 2.0, 1.0)
    absent = Check("c", "s", None, None, 1.0, "no disk")
    assert passed([good, absent])
    assert not passed([good, bad])
    assert not passed([absent])
    assert not passed([])


def test_what_a_load_says_becomes_the_check() -> None:
    """Figures are taken over; a load that cannot run says why."""
    answers = {"disk_write": [64.0, 32.0], "duration": {"skipped": "no clock"}}
    specs = [spec for spec in CHECKS if spec.load in answers]
    checks = list(run_checks(specs, run=answers.__getitem__))
    assert [c.passed for c in checks] == [False, None]
    assert checks[0].as_dict() == {
        "name": "Written to disk, with fsync", "unit": "MB", "true": 64.0, "measured": 32.0,
        "bound_pct": 1.0, "error_pct": -50.0, "passed": False,
    }  # fmt: skip
    assert checks[1].skipped == "no clock"


@pytest.mark.e2e
def test_a_real_load_is_measured_right() -> None:
    """A peak of 300 ms between two samples is measured within its bound."""
    (check,) = run_checks([spec for spec in CHECKS if spec.load == "memory_peak"])
    assert check.passed, check


@pytest.mark.e2e
def test_the_overhead_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each figure of the overhead is a finite number that some work took."""
    monkeypatch.setattr("mlflow_perf.selftest.overhead._SLICES", 2)
    found = measure_overhead()
    assert found["cpu_per_sample_us"] > 1
    assert found["core_share_pct"] == pytest.approx(found["cpu_per_sample_us"] / 1e4)
    assert {"start_ms", "stop_ms", "slowdown_pct", "memory_mb"} <= found.keys()
