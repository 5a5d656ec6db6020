"""A real Parsl run, now: what today's Parsl writes is what the importers read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlflow_perf import spans

_WORKFLOW = """
import parsl
from parsl import python_app
from parsl.config import Config
from parsl.executors import ThreadPoolExecutor
from parsl.monitoring.monitoring import MonitoringHub

@python_app
def double(x):
    return 2 * x

@python_app
def fail(x):
    raise ValueError(x)

if __name__ == "__main__":
    config = Config(
        executors=[ThreadPoolExecutor(label="threads", max_threads=2)],
        monitoring=MonitoringHub(resource_monitoring_enabled=False),
        run_dir="runinfo", retries=1, usage_tracking=0, initialize_logging=True,
    )
    with parsl.load(config):
        first = [double(i) for i in range(4)]
        second = [double(x) for x in first]
        broken = fail(1)
        print(sum(x.result() for x in second), broken.exception())
"""


@pytest.mark.e2e
@pytest.mark.slow
def test_a_run_of_todays_parsl(tmp_path: Path) -> None:
    """Its monitoring and its log are understood whole, agree, and lie within the run's time."""
    pytest.importorskip("parsl")
    pytest.importorskip("sqlalchemy")
    script = tmp_path / "flow.py"
    script.write_text(_WORKFLOW)
    environment = {**os.environ, "TZ": "Asia/Kolkata"}
    command = [sys.executable, str(script)]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=120)
    ended = script.stat().st_mtime
    results = spans.import_sources(tmp_path / "runinfo", tmp_path / "db")
    assert [r.importer for r in results] == ["parsl-monitoring", "parsl-run"]
    assert all(r.unread == {} for r in results)
    counts = {row["type"]: row["spans"] for row in spans.types(tmp_path / "db")}
    assert counts["parsl.monitoring.task"] == counts["parsl.rundir.task"] == 9
    assert counts["parsl.monitoring.try"] == 10
    assert sum(row["count"] for row in spans.sequences(tmp_path / "db")) == 9
    assert len(spans.critical_path(tmp_path / "db")) in (1, 2)
    (found,) = spans.sql(tmp_path / "db", "SELECT min(time) AS low FROM event")
    assert abs(found["low"] - ended) < 120
