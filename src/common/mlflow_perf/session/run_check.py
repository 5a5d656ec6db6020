"""Checks a run that a job was given, before the job begins."""

from __future__ import annotations

from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.own_cost import bring
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.uris import is_refused
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.session.run_finder import find_tracking_uri
from mlflow_perf.tracking.client import open_run
from mlflow_perf.tracking.mlflow_call import MlflowCall

_log = get_logger(__name__)


@bring()
def check_run(run_id: str, timeout_sec: float) -> None:
    """Raise when the store answers that a run does not exist; a store may also not answer.

    Args:
        run_id: The run.
        timeout_sec: Most seconds to wait for the answer.

    Raises:
        RunNotFoundError: When the run does not exist or was deleted.
    """
    uri = find_tracking_uri()
    try:
        if not is_refused(uri):
            call = MlflowCall(lambda: open_run(run_id, tracking_uri=uri), name="open-run")
            call.result(timeout_sec)
    except RunNotFoundError:
        raise
    except Exception as error:
        if is_from_handler(error):
            raise
        # A faulty server does not keep a job from starting.
        _log.debug("The run %s could not be checked: %s", run_id, error)
