"""METRIC lines within a log."""

from __future__ import annotations

from pathlib import Path

from mlflow_perf.spans import import_sources, sql


def test_figures_that_are_no_numbers_are_counted(tmp_path: Path) -> None:
    """A wrong figure does not spoil the other figures of its line."""
    log = tmp_path / "any.log"
    log.write_text("1669383194.5 host METRIC STRATEGY htex active=3 blocks=many\n", "utf-8")
    (result,) = import_sources(log, tmp_path / "db")
    found = sql(tmp_path / "db", "SELECT time, name, value FROM metric")
    assert found == [{"time": 1669383194.5, "name": "active", "value": 3.0}]
    assert result.unread == {"METRIC … blocks=… is not a number": 1}
