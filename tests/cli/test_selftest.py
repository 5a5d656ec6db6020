"""Rules of `mlflow-perf selftest`: its output and its exit code."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from mlflow_perf.cli import selftest
from mlflow_perf.selftest import Check

Run = Callable[..., Result]
GOOD = Check("CPU time", "s", 1.6, 1.61, 1.0)
BAD = Check("Written to disk", "MB", 64.0, 32.0, 1.0)
ABSENT = Check("Sent over loopback", "MB", None, None, 2.0, "no network")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs the command on given checks."""

    def run_on(checks: list[Check], *args: str) -> Result:
        monkeypatch.setattr(selftest, "run_checks", lambda: iter(checks))
        monkeypatch.setattr(selftest, "measure_overhead", lambda: {"cpu_per_sample_us": 100.0})
        return CliRunner().invoke(selftest.command, args)

    return run_on


def test_json_has_the_shape_of_the_contract(run: Run) -> None:
    """`passed`, the checks with true, measured and error, and the overhead."""
    result = run([GOOD, ABSENT], "--json")
    data = json.loads(result.output)
    assert result.exit_code == 0
    assert data["passed"] is True
    assert data["checks"] == [{
        "name": "CPU time", "unit": "s", "true": 1.6, "measured": 1.61,
        "error_pct": pytest.approx(0.625), "bound_pct": 1.0, "passed": True,
    }]  # fmt: skip
    assert data["skipped"] == [{"name": "Sent over loopback", "why": "no network"}]
    assert data["overhead"] == {"cpu_per_sample_us": 100.0}


def test_an_error_beyond_its_bound_ends_with_1(run: Run) -> None:
    """A failed check is named, and the command fails."""
    result = run([GOOD, BAD])
    assert result.exit_code == 1
    assert "FAILED" in result.output
    assert "-50.00%" in result.output


def test_the_table_names_each_check_and_each_skipped_one(run: Run) -> None:
    """The measured figure is beside the true one; a load that cannot run here says why."""
    result = run([GOOD, ABSENT])
    assert result.exit_code == 0
    for text in ("CPU time", "1.6 s", "1.61 s", "+0.63%", "passed", "no network", "CPU per sample"):
        assert text in result.output


def test_markdown_has_the_tables_of_the_documentation(run: Run) -> None:
    """One row per check, run or not, and one per cost."""
    lines = run([GOOD, ABSENT], "--markdown").output.splitlines()
    assert "| CPU time | 1.6 s | 1.61 s | +0.63% | ±1% | passed |" in lines
    assert "| Sent over loopback |  |  |  |  | not run |" in lines
    assert "| CPU per sample, µs | 100 |" in lines
