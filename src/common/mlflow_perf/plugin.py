"""MLflow's entry point for run context: tags for the runs of `start_run`, and the autolog switch.

MLflow loads this module on every `import mlflow`, and an entry point that raises anything but
ImportError or AttributeError breaks that import. So the module imports only the standard library at
its top. The class does not inherit from MLflow's: MLflow only calls its two methods.
"""

from __future__ import annotations

import itertools
import os
import sys
from typing import Any

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() in _TRUE


class NodeRunContext:
    """Gives MLflow the tags of the node and the job in which a run was started."""

    def __init__(self) -> None:
        # Nothing else reads a switch that is neither on nor off.
        value = os.environ.get("MLFLOW_PERF_AUTOLOG", "")
        if value.strip().lower() not in (*_TRUE, *_FALSE) and not _is_set("MLFLOW_PERF_DISABLE"):
            try:
                from mlflow_perf.core.safe_log import get_logger

                get_logger(__name__).warning(
                    "MLFLOW_PERF_AUTOLOG has no effect: it is %r; it must be true or false.", value
                )
            except Exception:  # noqa: BLE001, S110 - whatever is wrong here, MLflow goes on
                pass
        # MLflow is being imported now. Its classes are there once its fluent module is.
        if _wants_runs() or _find_notes():
            sys.meta_path.insert(0, _WhenImported())

    def in_context(self) -> bool:
        """Return whether tags are wanted: always, unless `MLFLOW_PERF_DISABLE` is set."""
        if _wants_runs():  # perhaps since MLflow was imported
            _follow_runs()
        return not _is_set("MLFLOW_PERF_DISABLE")

    def tags(self) -> dict[str, str]:
        """Return the tags; none if this process's place is unknown."""
        # `report()` raises on a wrong setting of ours; the `start_run` of a host must not.
        try:
            from mlflow_perf.node.place import detect

            tags = detect().tags()
            # The run of `report()` is not the active one, so that the job's `start_run` works as
            # ever. A run that the job starts becomes its child, if it is in the same store.
            session = sys.modules.get("mlflow_perf.session.report")
            current = None if session is None else session.current()
            if current is not None and current.own_run and current.is_in_current_store():
                tags["mlflow.parentRunId"] = current.run_id
            elif parent := os.environ.get("MLFLOW_PERF_PARENT"):
                tags |= _name_parent(parent)
            elif "MLFLOW_PERF_STEP" in os.environ:
                tags |= _name_step()
        except Exception:  # noqa: BLE001 - see above
            return {}
        return tags


def _name_parent(parent_id: str) -> dict[str, str]:
    """Return the tag of a new run's parent; none where that is in another store than MLflow's."""
    import mlflow

    from mlflow_perf.core.own_cost import is_own_work
    from mlflow_perf.tracking.client import has_parent

    # A run of ours, whose store may be another one, is checked there. The parent of a run inside
    # another one is that run, as MLflow says itself.
    if is_own_work() or mlflow.active_run() is not None:
        return {}
    if has_parent(parent_id):
        return {"mlflow.parentRunId": parent_id}
    if not _find_notes():  # else the session above this process reports what it starts
        from mlflow_perf.core.tokens import make_token
        from mlflow_perf.tracking.reporting_notes import note_apart

        note_apart(make_token(6))
    return {}


def _name_step() -> dict[str, str]:
    """Return the tags by which the runner of a pipeline takes a job's first run for its step's.

    With the step's run in `MLFLOW_RUN_ID`, MLflow continues that once, and any other is no step.
    """
    import mlflow

    from mlflow_perf.tracking.client import is_current
    from mlflow_perf.tracking.run_handle import find_step

    step = find_step()
    if step is None or step.run_id is not None or not is_current(step.store):
        return {}
    # A run inside another one is that one's, and one in an experiment of the job's own is no step.
    is_apart = os.environ.get("MLFLOW_EXPERIMENT_ID") != step.experiment
    if is_apart or mlflow.active_run() is not None or next(_runs_of_step):
        return {}
    return {"mlflow.parentRunId": step.parent, "mlflow_perf.step": step.step}


def _wants_runs() -> bool:
    return _is_set("MLFLOW_PERF_AUTOLOG") and not _is_set("MLFLOW_PERF_DISABLE")


def _find_notes() -> str | None:
    """Return the folder in which the session above this process looks for notes of its runs."""
    recorders = sys.modules.get("mlflow_perf.recorders.current")
    if recorders is not None and recorders.process.outer is not None:
        # A block of this process, during which MLflow is imported, has set its own folder.
        return str(recorders.process.outer_variable or "") or None
    return os.environ.get("MLFLOW_PERF_SPOOL")


class _WhenImported:
    """Finds no module; it is asked for each, and so notices that MLflow's classes are there."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if hasattr(sys.modules.get("mlflow.tracking.fluent"), "end_run"):
            # As `core.finders` does it, whose import would come here again.
            sys.meta_path = [one for one in sys.meta_path if one is not self]
            _follow_runs()


_runs_of_step = itertools.count()  # each number is given once, whatever the threads
_switch: Any = None


def _follow_runs() -> None:
    """Let the process hear of its runs; all else is imported when the first one starts."""
    global _switch  # noqa: PLW0603 - one for the process
    if _switch is None:
        try:
            switch = _Switch()
            if _wants_runs():
                from mlflow_perf.tracking.run_events import listen

                listen(switch)
            if folder := _find_notes():
                from mlflow_perf.tracking.run_notes import note_runs

                note_runs(folder)
            _switch = switch
        except Exception:  # noqa: BLE001, S110 - whatever is wrong here, MLflow goes on
            pass


class _Switch:
    """Hears of the first run, and hands it over to `autolog`."""

    def run_started(self, run: Any) -> None:
        from mlflow_perf.session.autolog import switch_on
        from mlflow_perf.tracking.run_events import stop_listening

        hub = switch_on()
        stop_listening(self)
        if hub is not None:
            hub.run_started(run)

    def run_ending(self, run_id: str, status: str) -> None:
        """Ignore the end of a run that began before."""

    def run_ended(self, run_id: str) -> None:
        """Ignore it likewise."""

    run_deleted = run_restored = run_ended
