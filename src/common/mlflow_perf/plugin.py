"""MLflow's entry point for run context: it tags runs of `start_run` with node and job.

MLflow loads this module on every `import mlflow`, and an entry point that raises anything but
ImportError or AttributeError breaks that import. So the module imports only the standard library at
its top. The class does not inherit from MLflow's: MLflow only calls its two methods.
"""

from __future__ import annotations

import os
import sys

__all__ = ["NodeRunContext"]


class NodeRunContext:
    """Gives MLflow the tags of the node and the job in which a run was started."""

    def in_context(self) -> bool:
        """Return whether tags are wanted: always, unless `MLFLOW_PERF_DISABLE` is set."""
        disabled = os.environ.get("MLFLOW_PERF_DISABLE", "").strip().lower()
        return disabled not in ("1", "true", "yes", "on")  # as in the settings

    def tags(self) -> dict[str, str]:
        """Return the tags; none if this process's place is unknown."""
        # `report()` raises on a wrong setting of ours; the `start_run` of a host must not.
        try:
            from mlflow_perf.node.place import detect

            tags = detect().tags()
            # The run of `report()` is not the active one, so that the job's `start_run` works as
            # ever. A run that the job starts becomes its child.
            session = sys.modules.get("mlflow_perf.session.report")
            current = None if session is None else session.current()
            if current is not None and current.own_run and current.run_id is not None:
                tags["mlflow.parentRunId"] = current.run_id
            elif parent := os.environ.get("MLFLOW_PERF_PARENT"):
                tags["mlflow.parentRunId"] = parent
        except Exception:  # noqa: BLE001 - see above
            return {}
        return tags
