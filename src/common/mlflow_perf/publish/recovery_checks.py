"""Checks before a journal is sent, and the end of the runs whose journal has no figures."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.temporary import temporary_folder
from mlflow_perf.core.uris import find_local_database, is_local, is_refused, redact_password
from mlflow_perf.core.workspaces import working_in
from mlflow_perf.errors import DocumentError
from mlflow_perf.model.document import PerfDocument
from mlflow_perf.node.exit_cause import End, boot_id, count_new_oom_kills
from mlflow_perf.node.slurm_job import find_slurm_cause
from mlflow_perf.node.step_notes import read_end, read_stop_note
from mlflow_perf.publish.final_document import CAUSE_TAG
from mlflow_perf.publish.group_journal import NOTES, create_group_run
from mlflow_perf.publish.journal_file import open_journal, read_head
from mlflow_perf.publish.pipeline_journal import WORK_TAG, end_lost_steps, end_steps, is_workflow
from mlflow_perf.publish.step_record import list_stand_ins
from mlflow_perf.publish.workflow_report import log_workflow
from mlflow_perf.publish.workflow_writer import Place, Tracking
from mlflow_perf.recorders import spool
from mlflow_perf.recorders.spool_places import find_own
from mlflow_perf.tracking.client import (
    end_run,
    find_current_experiment,
    is_current,
    open_client,
    provide_experiment,
    set_tags,
)
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.perf_run import GROUP_TAG, PARENT_TAG, TAG, PerfRun
from mlflow_perf.tracking.recorded_runs import discard_repeated_runs, find_recorded_run
from mlflow_perf.tracking.reporting_notes import REPORTING_TAG, tag_notes
from mlflow_perf.tracking.run_files import fetch_file
from mlflow_perf.tracking.run_handle import RunHandle
from mlflow_perf.tracking.search import name_all_steps_experiments

T = TypeVar("T")

UNKNOWN_CAUSE = "the process was killed or ended without a word (SIGKILL, OOM kill, os._exit)"
CUT_OFF = "its journal ends early"
UNWRITTEN = f"{CUT_OFF}, because it could not be written"
_DAMAGED = "its journal is damaged in line {}, so how its job ended is not known"
_SAME_START_SEC = 0.001
_UNSURE = "could not determine whether the server supports workspaces"  # of a server before 3.10
# What MLflow, or a database's driver, sends to any server that an address names.
_CREDENTIALS = (
    "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4", "MLFLOW_TRACKING_CLIENT_CERT_PATH",
    "PGPASSWORD", "MYSQL_PWD",
)  # fmt: skip
_FAILED_REQUEST = re.compile(
    r"API request to \S+ failed with exception HTTPS?ConnectionPool\([^)]*\): "
    r"(?:Max retries exceeded with url: \S+ \(Caused by (.+)\)|(.+))"
)

_log = get_logger(__name__)


def check_store(run: RunHandle) -> None:
    """Refuse to ask a store that must not get this user's credentials, is away, or is gone.

    Raises:
        DocumentError: When it must not be asked, or its file does not exist any more.
        ConnectionRefusedError: When nothing listens there.
    """
    uri = run.tracking_uri
    check_credentials(uri)
    if is_refused(uri):
        raise ConnectionRefusedError(f"nothing listens at {redact_password(uri)}")
    file = find_local_database(uri)
    # MLflow would create an embedded store that is gone, and find no run there.
    if run.run_id and file is not None and file.is_absolute() and not file.exists():
        raise DocumentError(
            f"its run was in {file}, which is not there; bring that back, or delete the journal"
        )


def check_credentials(uri: str) -> None:
    """Refuse a server that the environment does not name, where MLflow would send it credentials.

    Raises:
        DocumentError: When it would.
    """
    if is_local(uri) or _name_server(uri) == _name_server(
        os.environ.get("MLFLOW_TRACKING_URI", "")
    ):
        return
    has_file = Path.home().joinpath(".mlflow", "credentials").exists()
    given = next((name for name in _CREDENTIALS if os.environ.get(name)), None)
    if given or has_file:
        raise DocumentError(
            f"its server {redact_password(uri)} would get the credentials of "
            f"{given or '~/.mlflow/credentials'}; if it is yours, name it in MLFLOW_TRACKING_URI"
        )


def _name_server(uri: str) -> tuple[str, str]:
    parts = urlsplit(uri)
    return parts.scheme, parts.netloc.rpartition("@")[2].lower()


def is_of_this_host(head: Mapping[str, Any]) -> bool:
    """Return whether a journal with this first line was written on this host."""
    node = head.get("node")
    host = node.get("hostname") if isinstance(node, dict) else None
    return host in (None, socket.gethostname())


def find_cause(head: Mapping[str, Any]) -> str:
    """Return why the job of a journal ended, as far as runner, machine and scheduler know."""
    if note := read_stop_note(str(head.get("stop_note", ""))):
        return note[1]
    node = head.get("node")
    by_slurm = find_slurm_cause(node) if isinstance(node, dict) else None
    if by_slurm is not None or not is_of_this_host(head):
        return by_slurm or UNKNOWN_CAUSE
    if head.get("boot_id") and head["boot_id"] != boot_id():
        return "the machine went down"
    counts = {str(file): count for file, count in dict(head.get("oom_kills", {})).items()}
    if count_new_oom_kills({file: n for file, n in counts.items() if type(n) is int}):
        return "the process was killed, probably out of memory: the OOM killer struck in its cgroup"
    return UNKNOWN_CAUSE


def find_end(head: Mapping[str, Any], damaged: int = 0) -> End:
    """Return how the job of a journal ended, which sent no end itself.

    Args:
        head: The journal's first line.
        damaged: The number of its first damaged line; 0 without any.
    """
    note, cause = read_stop_note(str(head.get("stop_note", ""))), find_cause(head)
    if damaged and cause == UNKNOWN_CAUSE:
        cause = _DAMAGED.format(damaged)
    # A step's end is that of its command, and of no pipeline or group that this started.
    ended = None if is_workflow(head) else read_end(str(head.get("stop_note", "")))
    return note or ended or End("KILLED", cause)


def find_destination(lines: list[dict[str, Any]]) -> tuple[str | None, int | None]:
    """Return the run and the node's index that a journal's lines name, as far as they do."""
    named = (line["delivery"] for line in reversed(lines) if "delivery" in line)
    header = next((one for one in named if isinstance(one, dict)), {})
    run_id, index = header.get("run_id"), header.get("index")
    return run_id if isinstance(run_id, str) else None, index if type(index) is int else None


def find_spool(place: Path, head: Mapping[str, Any]) -> Path | None:
    """Return the folder with the operations of a job's processes, never one outside."""
    name = head.get("spool")
    if not isinstance(name, str) or not re.fullmatch(rf"{spool.PREFIX}\w+", name):
        return None
    return find_own(name, place)


def remove_journal(path: Path, spooled: Path | None, *, sent_to: str | None = None) -> None:
    """Remove a journal, and the folder of its processes if it has one.

    Args:
        path: The journal.
        spooled: The folder.
        sent_to: The run that has its report now. Beside that of a pipeline's step, what the runner
            measured goes, too.
    """
    path.unlink(missing_ok=True)
    if spooled is not None:
        spool.remove(spooled)
    for other in list_stand_ins(path, sent_to):
        remove_journal(other, find_spool(other.parent, read_head(other)))


def shorten(reason: str) -> str:
    """Return why a request failed, without the addresses that MLflow and urllib3 put around it."""
    found = _FAILED_REQUEST.fullmatch(reason)
    return reason if found is None else found[1] or found[2]


def is_refusal(error: Exception) -> bool:
    """Return whether a server, or MLflow before it asks, refuses this, but perhaps no other one."""
    from mlflow.exceptions import MlflowException

    if not isinstance(error, MlflowException):
        return False
    # MLflow makes no `RestException` of an answer that is no JSON, such as "Permission denied".
    # A run's id that cannot be one it refuses before it asks the server.
    return error.error_code in ("PERMISSION_DENIED", "BAD_REQUEST", "INVALID_PARAMETER_VALUE")


def call_in_workspace(run: RunHandle, call: Callable[[], T]) -> T:
    """Make a call in the workspace in which a job worked, and return its result.

    Where its server has no workspaces, the job named one in vain. There is only one place then.

    Raises:
        Exception: Whatever the call raises.
    """
    from mlflow.exceptions import MlflowException

    try:
        with working_in(run.workspace):
            return call()
    except MlflowException as error:
        has_none = error.error_code == "FEATURE_DISABLED" or _UNSURE in str(error)
        if not (run.workspace and has_none):
            raise
    run.workspace = ""
    return call()


def is_known(delivery: Delivery, *, is_stand_in: bool = False) -> bool:
    """Return whether the run already has this recording, sent at its end or by another recover.

    The journal of a job that changed its working folder, or whose network failed while it removed
    the journal, has no more than the run, and often less.

    Args:
        delivery: What the journal says.
        is_stand_in: Whether any report that the run has counts more.

    Raises:
        DocumentError: When the store has no such run, as after `mlflow gc`.
        Exception: Whatever MLflow raises when the store does not answer.
    """
    from mlflow.exceptions import MlflowException

    run, mine = delivery.run, delivery.document
    if run.run_id is None:
        return False
    client = open_client(run.tracking_uri)
    try:
        stored = client.get_run(run.run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        store = redact_password(run.tracking_uri) or "MLflow's default store"
        if run.workspace:
            store = f"the workspace {run.workspace} of {store}"
        raise DocumentError(
            f"{store} has no run {run.run_id} any more; if it was deleted for good, delete the "
            "journal"
        ) from error
    # The file alone is not all of a report: a deleted run takes files and refuses metrics.
    if stored.info.lifecycle_stage == "deleted" or not stored.data.metrics:
        return False
    if is_stand_in and f"{TAG}version" in stored.data.tags:
        return True
    # Our own run is ended last: without that, not everything arrived.
    if run.own_run and stored.info.status == "RUNNING":
        return False
    path = f"{delivery.artifact_path}/node-{delivery.index}.json"
    try:
        with temporary_folder() as folder:
            local = fetch_file(client, run.run_id, path, folder)
            there = PerfDocument.from_json(local.read_bytes()).nodes.get(delivery.index)
    # Whatever the artifact store says of a file that does not exist.
    except Exception as error:  # noqa: BLE001
        _log.debug("%s of run %s cannot be compared: %s", path, run.run_id, error)
        return False
    if there is None or there.component != mine.component or there.started is None:
        return False
    is_same = abs(there.started - (mine.started or 0.0)) < _SAME_START_SEC
    return is_same and (there.duration_sec or 0.0) >= (mine.duration_sec or 0.0)


def end_without_figures(delivery: Delivery, path: Path) -> tuple[str, str | None] | None:
    """End the runs of a group, of a pipeline, or of a block that never began.

    It returns the outcome and the run's id; None for a block that ended and has a report, however
    little that says: it may have had no room for a thread.

    Args:
        delivery: What the journal says.
        path: The journal; the steps of a killed group have left their notes beside it.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    if (work := delivery.tags.get(WORK_TAG)) is not None:
        client = open_client(delivery.run.tracking_uri)
        end_steps(client, Path(work))
        end_lost_steps(client, delivery.run)
    elif GROUP_TAG not in delivery.tags:
        return ("not begun", end_unbegun_run(delivery)) if CAUSE_TAG in delivery.tags else None
    delivery.tags |= tag_notes(_read_notes(path.with_suffix(NOTES)))
    run_id = end_group(delivery)
    return ("not begun" if run_id is None else "sent"), run_id


def _read_notes(path: Path) -> str:
    """Return the notes of a group's steps; nothing where they are gone, or not ours."""
    with (
        contextlib.suppress(DocumentError, OSError),
        open_journal(path) as handle,
        os.fdopen(handle, "rb", closefd=False) as file,
    ):
        return file.read().decode(errors="replace")
    return ""


def end_unbegun_run(delivery: Delivery) -> str | None:
    """End the run of a job that was killed before its block began, and return the run's id.

    Returns:
        None where the job had no run yet.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    run, client = delivery.run, open_client(delivery.run.tracking_uri)
    if run.run_id is not None:
        made = client.get_run(run.run_id) if run.own_run else None
    else:
        made = find_recorded_run(run)
    if made is None:
        return run.run_id
    run_id = str(made.info.run_id)
    discard_repeated_runs(run, run_id)
    if made.info.status == "RUNNING":
        said = (CAUSE_TAG, "mlflow_perf.status")
        set_tags(client, run_id, {tag: delivery.tags[tag] for tag in said})
        end_run(client, run_id, "KILLED", ended=made.info.start_time / 1000)
    return run_id


def end_group(delivery: Delivery) -> str | None:
    """End the run of a group or pipeline with its workflow's report, and return the run's id.

    A group whose run could not be made when its command began gets it now. The report is made where
    MLflow's own tracking URI is that of the run, as everything that reads the steps asks that
    store; elsewhere `renew_workflows` makes it, where it may switch.

    Returns:
        None where the group had no run, and its command had not begun.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    run, client = delivery.run, open_client(delivery.run.tracking_uri)
    made = client.get_run(run.run_id) if run.run_id is not None else find_recorded_run(run)
    if made is None and run.started is not None:
        place = provide_experiment(run) or find_current_experiment(run.tracking_uri)
        made = create_group_run(delivery, experiment_id=place)
    if made is None:
        return None
    run_id, started = str(made.info.run_id), made.info.start_time / 1000
    discard_repeated_runs(run, run_id)
    if is_current(run.tracking_uri):
        # A pipeline in it is in an experiment of its own.
        name_all_steps_experiments(run_id, made.info.start_time)
        made = client.get_run(run_id)
    if made.info.status == "RUNNING":
        lasted = delivery.document.duration_sec
        ended = started + (lasted or 0.0)
        if lasted is None:  # killed: it lived at least as long as its steps
            places = PerfRun.from_mlflow(made).step_experiments
            steps = client.search_runs(places, f"tags.`{PARENT_TAG}` = '{run_id}'")
            ended = max([ended, *((step.info.end_time or 0) / 1000 for step in steps)])
        if CAUSE_TAG in delivery.tags:
            set_tags(client, run_id, {CAUSE_TAG: delivery.tags[CAUSE_TAG]})
        end_run(client, run_id, delivery.document.status or "KILLED", ended=ended)
    for key, value in delivery.tags.items():
        if key.startswith(REPORTING_TAG):
            client.set_tag(run_id, key, value)
    if is_current(run.tracking_uri):
        log_workflow(run_id, Tracking(Place(run.tracking_uri)))
    return run_id
