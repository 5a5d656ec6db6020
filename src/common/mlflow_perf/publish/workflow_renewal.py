"""Renew the reports of workflows that had ended before the reports of all their steps came."""

from __future__ import annotations

from collections.abc import Iterable

from mlflow_perf.core.format import format_count
from mlflow_perf.core.json_io import from_json
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.temporary import temporary_folder
from mlflow_perf.core.uris import reason_of
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.publish.workflow_report import WORKFLOW_FILE, log_workflow
from mlflow_perf.publish.workflow_writer import Place, Tracking
from mlflow_perf.tracking.client import is_current, open_client, open_run
from mlflow_perf.tracking.perf_run import COUNT_TAG, PerfRun
from mlflow_perf.tracking.run_files import fetch_file
from mlflow_perf.tracking.search import find_children

_MOST_GROUPS = 100  # tags that anybody can write may make a circle of runs

_log = get_logger(__name__)


def renew_workflows(sent: Iterable[tuple[str, str]], *, switch_store: bool = False) -> None:
    """Log the reports of the ended workflows of some steps again; a failure is one line each.

    Args:
        sent: Store and id of each run that got a report. What is a workflow's run itself has the
            workflow's report already, unless the process that ended it could not make it.
        switch_store: Whether this process is ours alone, so that MLFLOW_TRACKING_URI may become
            the store of each of them.
    """
    given = dict.fromkeys(sent)
    waiting, seen = list(given), set(given)
    while waiting and len(seen) < len(given) + _MOST_GROUPS:
        uri, run_id = waiting.pop()
        try:
            run = PerfRun.from_mlflow(open_run(run_id, tracking_uri=uri))
            if (uri, run_id) in given and run.is_group and COUNT_TAG not in run.tags:
                _renew(run, uri, switch_store=switch_store)
            parent_id = run.parent_id
            if parent_id is None or (uri, parent_id) in seen:
                continue
            seen.add((uri, parent_id))
            parent = PerfRun.from_mlflow(open_run(parent_id, tracking_uri=uri))
            # The end of one that still runs makes its report; any other parent has one of its own.
            if not parent.is_group or parent.status == "RUNNING":
                continue
            waiting.append((uri, parent_id))
            _renew(parent, uri, switch_store=switch_store)
        except RunNotFoundError:  # deleted meanwhile, or a parent that is not in this store
            continue
        # The edge to MLflow: the steps have their reports, which count more.
        except Exception as error:  # noqa: BLE001
            _say(run_id, reason_of(error).rstrip("."))


def _renew(parent: PerfRun, uri: str, *, switch_store: bool) -> None:
    run_id, place = str(parent.run_id), Place(uri)
    if not is_current(uri):  # everything that reads the steps asks that store
        if not switch_store:
            _say(run_id, "MLFLOW_TRACKING_URI names another store")
            return
        place.make_default()
    read = {str(child.run_id) for child in find_children(parent, documents=False)}
    if unread := _list_reported(parent, uri) - read:
        _say(run_id, f"{format_count(len(unread), 'step')} of it cannot be read")
        Tracking(place).tag(run_id, COUNT_TAG, str(len(read | unread)))
    else:
        log_workflow(run_id, Tracking(place))


def _list_reported(parent: PerfRun, uri: str) -> set[str]:
    """Return the ids of the runs in a workflow's logged report; none where it has no report."""
    if COUNT_TAG not in parent.tags:
        return set()
    with temporary_folder() as folder:
        file = fetch_file(open_client(uri), str(parent.run_id), WORKFLOW_FILE, folder)
        steps = from_json(file.read_bytes())["steps"]
    return {str(step["run_id"]) for step in steps}


def _say(run_id: str, why: str) -> None:
    _log.warning("The report of the workflow of run %s is not renewed: %s.", run_id, why)
