"""Start-up code of the Python processes below a session; `sitecustomize.py` runs it there.

This folder stands on their PYTHONPATH, so its files import nothing of mlflow_perf at the top.
"""

from __future__ import annotations

from mlflow_perf.integrations.startup._mlflow_perf_startup import call, forget

__all__ = ["call", "forget"]
