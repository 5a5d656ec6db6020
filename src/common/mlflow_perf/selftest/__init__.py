"""Known loads whose measured figures are compared with the true ones, and the cost of measuring."""

from __future__ import annotations

from mlflow_perf.selftest.checks import Check, passed, run_checks
from mlflow_perf.selftest.overhead import measure_overhead

__all__ = ["Check", "measure_overhead", "passed", "run_checks"]
