"""Rules of the known loads: the true figure is exact, and a load that cannot run says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlflow_perf.selftest import loads
from mlflow_perf.selftest.loads import LOADS, main


def test_a_load_prints_the_true_and_the_measured_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command prints both figures as JSON."""
    monkeypatch.setitem(LOADS, "duration", lambda folder: (2.0, float(folder == tmp_path)))
    main("duration", str(tmp_path))
    assert json.loads(capsys.readouterr().out) == [2.0, 1.0]


def test_a_figure_that_cannot_be_measured_is_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a metric is absent, or the disk fails, the load prints why instead of failing."""
    monkeypatch.setitem(LOADS, "duration", lambda _: (2.0, loads._read({}, "duration_sec")))
    main("duration", str(tmp_path))
    assert "duration_sec cannot be measured" in json.loads(capsys.readouterr().out)["skipped"]


@pytest.mark.e2e
def test_the_true_figure_of_a_cpu_load_is_the_time_that_it_used(tmp_path: Path) -> None:
    """The load of 50 ms uses at least that much CPU time, and its figure is in seconds."""
    true, measured = LOADS["short_job"](tmp_path)
    assert true == pytest.approx(0.05, rel=0.5)
    assert measured > 0
