"""A second of a job on two CPUs, of which it uses one."""

from __future__ import annotations

from mlflow_perf.analysis.span import Span

SPAN = Span(
    start_sec=0.0,
    seconds=1.0,
    cores=2.0,
    used=1.0,
    node_used=1.0,
    own=True,
    run_delay=0.0,
    peak_used=2.0,
    own_io=True,
)
