"""Rules of the selftest's verdicts, and a real load through it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.selftest.checks import CHECKS, Check, passed, run_checks
from mlflow_perf.selftest.loads import LOADS


def test_every_check_has_its_load_and_every_load_its_check() -> None:
    """The table of checks and the table of loads have the same names in the same order."""
    assert [spec.load for spec in CHECKS] == list(LOADS)
    assert all(0 < spec.bound_pct <= 10 for spec in CHECKS)


@given(st.floats(1e-3, 1e6), st.floats(-50, 50), st.floats(0.1, 20))
def test_a_check_passes_within_its_bound_only(true: float, error: float, bound: float) -> None:
    """The error is signed and in per cent of the truth; an error beyond the bound fails."""
    check = Check("x", "s", true, true * (1 + error / 100), bound)
    assert check.error_pct == pytest.approx(error, abs=1e-6)
    if abs(abs(error) - bound) > 1e-6:
        assert check.passed == (abs(error) < bound)


def test_one_failure_fails_all_and_nothing_at_all_is_no_pass() -> None:
    """A skipped check decides nothing; a self-test without any check has not passed."""
    good, bad = Check("a", "s", 1.0, 1.0, 1.0), Check("b", "s", 1.0, 2.0, 1.0)
    absent = Check("c", "s", None, None, 1.0, "no disk")
    assert passed([good, absent])
    assert not passed([good, bad])
    assert not passed([absent])
    assert not passed([])


def test_the_figures_of_a_load_become_the_check() -> None:
    """The figures are copied; a load that cannot run says why."""
    answers: dict[str, dict[str, Any] | list[float]] = {
        "disk_write": [64.0, 32.0],
        "duration": {"skipped": "no clock"},
    }
    specs = [spec for spec in CHECKS if spec.load in answers]
    checks = list(run_checks(specs, run=answers.__getitem__))
    assert [c.passed for c in checks] == [False, None]
    assert checks[0].as_dict() == {
        "name": "Written to disk, with fsync", "unit": "MB", "true": 64.0, "measured": 32.0,
        "bound_pct": 1.0, "error_pct": -50.0, "passed": False,
    }  # fmt: skip
    assert checks[1].skipped == "no clock"


@pytest.mark.e2e
def test_a_real_load_is_measured_within_its_bound() -> None:
    """A peak of 300 ms between two samples is measured within its bound."""
    (check,) = run_checks([spec for spec in CHECKS if spec.load == "memory_peak"])
    assert check.passed, check
