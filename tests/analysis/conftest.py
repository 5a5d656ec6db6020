"""Runs made of figures, without a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.perf_run import PerfRun

MakeRun = Callable[..., PerfRun]


@pytest.fixture
def make_run() -> MakeRun:
    """Return a maker of finished runs: a summary per node, the rest by name."""

    def make(
        *summaries: Mapping[str, float],
        label: str = "run",
        component: str = "train",
        facts: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> PerfRun:
        nodes = {
            i: NodeDocument(
                {"index": i, "count": len(summaries), "hostname": f"host{i}", **(facts or {})},
                component=component,
                started=options.get("started", 1000.0),
                duration_sec=summary.get("duration_sec"),
                summary=dict(summary),
            )
            for i, summary in enumerate(summaries)
        }
        given = {"run_id": label, "status": "FINISHED", **options}
        document = PerfDocument(nodes) if nodes else None
        return PerfRun(label, component=component, document=document, **given)

    return make


@pytest.fixture
def hours(make_run: MakeRun) -> Callable[..., list[PerfRun]]:
    """Return a maker of runs of one node that held so many CPU-hours each."""

    def make(*values: float, **options: object) -> list[PerfRun]:
        return [
            make_run({"node_cpu_hours": v, "max_t_mem_percent": 40.0}, label=f"r{i}", **options)
            for i, v in enumerate(values)
        ]

    return make
