"""Steps and workflows without a store."""

from __future__ import annotations

from typing import Any

from mlflow_perf.analysis.workflow import Workflow, build_workflow
from mlflow_perf.tracking.perf_run import PerfRun

PARENT = PerfRun("demo", run_id="p", name="demo", started=100.0, ended=160.0)


def step(
    name: str, start: float, end: float | None, *, after: str | None = None, **more: Any
) -> PerfRun:
    """Return the run of a step; `after` names the steps that it depends on."""
    tags = {} if after is None else {"mlflow_perf.depends_on": after}
    given = {"status": "FINISHED", **more}
    return PerfRun(name, run_id=name, component=name, started=start, ended=end, tags=tags, **given)


def built(*steps: PerfRun, parent: PerfRun = PARENT) -> Workflow:
    """Return the workflow of these steps."""
    found = build_workflow(parent, steps, now=200.0)
    assert found is not None
    return found
