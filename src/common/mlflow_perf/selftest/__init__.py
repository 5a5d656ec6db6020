"""Known loads, measured against what they truly were, and what measuring cost.

Imports the sampler and what is below it.
"""

from __future__ import annotations

from mlflow_perf.selftest.check import Check, passed, run_checks
from mlflow_perf.selftest.overhead import measure_overhead

__all__ = ["Check", "measure_overhead", "passed", "run_checks"]
