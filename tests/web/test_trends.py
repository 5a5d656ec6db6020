"""The trend of a component's metric, as data."""

from __future__ import annotations

import pytest

from mlflow_perf.errors import SettingError
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.web.trends import build_trend


def _run(number: int, seconds: float, **tags: str) -> PerfRun:
    return PerfRun(f"r{number}", run_id=f"{number:032x}", started=1e9 + 3600 * number,
                   status="FINISHED", component="fit", metrics={"duration_sec": seconds},
                   tags={f"mlflow_perf.{k}": v for k, v in tags.items()})  # fmt: skip


def test_a_lasting_change_has_two_levels_and_a_verdict() -> None:
    """Each level is a line with its median; the change names both runs, in one unit."""
    runs = [_run(i, (100.0 if i < 8 else 200.0) + i % 3) for i in range(16)]
    trend = build_trend("fit", "duration_sec", runs[::-1])
    (change,) = trend.changes
    assert (change.run_id, change.before_id) == (runs[8].run_id, runs[7].run_id)
    assert change.verdict == "worse"
    assert "101 → 201 s (+99.0%)" in change.text
    assert [line.text for line in trend.plot.levels] == ["1 min 41 s", "3 min 21 s"]
    assert len(trend.plot.dots) == 16


def test_the_baseline_is_a_line_of_its_own() -> None:
    """A pinned run is compared with the present level, and marked among the newest."""
    runs = [_run(i, 50.0, **({"baseline": "true"} if i == 2 else {})) for i in range(6)]
    trend = build_trend("fit", "duration_sec", runs[::-1])
    assert trend.plot.baseline is not None
    assert "Baseline 50 s: +0.0% now." in trend.summary
    assert [is_baseline for *_, is_baseline in trend.newest].count(True) == 1


def test_an_unknown_metric_is_refused() -> None:
    """A metric that no run has is named."""
    with pytest.raises(SettingError, match="nonsense"):
        build_trend("fit", "nonsense", [_run(1, 5.0)])
