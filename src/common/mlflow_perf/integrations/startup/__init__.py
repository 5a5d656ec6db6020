"""What Python processes below a session do first, by `sitecustomize.py` beside this file.

Imports nothing of ours outside this folder, which stands on their PYTHONPATH.
"""

from __future__ import annotations

from mlflow_perf.integrations.startup._mlflow_perf_startup import call, forget

__all__ = ["call", "forget"]
