"""MLflow's entry point for run context: node and job tags on the runs that `start_run` creates.

MLflow loads this module on every `import mlflow`, and an entry point that raises anything but
ImportError or AttributeError there breaks that import. So it imports nothing at its top but the
standard library, and the class is no subclass of MLflow's: MLflow asks for its two methods only.
"""

from __future__ import annotations

import os
import sys

__all__ = ["NodeRunContext"]


class NodeRunContext:
    """Tells MLflow on which node, and in which job, a run was started."""

    def in_context(self) -> bool:
        """Whether tags are wanted: always, unless `MLFLOW_PERF_DISABLE` is set."""
        asked = os.environ.get("MLFLOW_PERF_DISABLE", "").strip().lower()
        return asked not in ("1", "true", "yes", "on")  # as the settings take it

    def tags(self) -> dict[str, str]:
        """Return the tags; none where this process's place cannot be told."""
        # Whatever is wrong with our settings is said by `report()`, not by a host's `start_run`.
        try:
            from mlflow_perf.node.place import detect

            return {**detect().tags(), **_parent()}
        except Exception:  # noqa: BLE001 - see above
            return {}


def _parent() -> dict[str, str]:
    """Return the tag that puts a run which the job starts itself below the run of `report()`.

    The run of `report()` is not the active one, so that the job's `start_run` works as ever.
    """
    session = sys.modules.get("mlflow_perf.session.report")
    current = None if session is None else session.current()
    if current is None or not current.own_run or current.run_id is None:
        return {}
    return {"mlflow.parentRunId": current.run_id}
