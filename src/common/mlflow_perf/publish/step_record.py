"""What MLflow is to have of a pipeline's step, kept in the step's folder until MLflow has it.

That is its run, and the journals of its reports.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.uris import is_same_store, redact_param
from mlflow_perf.publish.journal import SUFFIX
from mlflow_perf.publish.journal_file import read_head
from mlflow_perf.publish.step_files import upload_files
from mlflow_perf.tracking.batches import clean_tags, clean_text
from mlflow_perf.tracking.client import end_run, open_client, set_tags
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.perf_run import BEGAN_TAG, PARENT_TAG, TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient

STARTED = "started"
"""File in the folder of a step, with its run's id; empty while it has no run."""

_RECORD = "record.json"
_JOURNALS, _MEASURED = "journals", "measured"  # of the step itself, and of the runner
_NAME = "mlflow.runName"
# Azure ML's REST interface v2.0 takes less than MLflow's own server.
_BATCH = 100
_VALUE_CHARS = 500
_log = get_logger(__name__)


@dataclass(frozen=True)
class StepRecord:
    """The run of a step, as MLflow is to have it at the end.

    Attributes:
        experiment_id: Its experiment.
        name: Name of the step.
        parent: Id of the pipeline's run.
        tags: Its tags from the begin.
        params: Its parameters.
        started: Unix time of its begin; None for the time at which the run is made.
        status: How it ended.
        ended: Unix time of its end; None until then.
        end_tags: The tags that it has at the end.
    """

    experiment_id: str
    name: str
    parent: str
    tags: dict[str, str]
    params: dict[str, Any] = field(default_factory=dict)
    started: float | None = None
    status: str = "KILLED"
    ended: float | None = None
    end_tags: dict[str, str] = field(default_factory=dict)

    def keep(self, step: Path) -> None:
        """Write it into the folder of the step, for `complete`."""
        try:
            step.mkdir(parents=True, exist_ok=True)
            (step / _RECORD).write_text(json.dumps(asdict(self)), encoding="utf-8")
        except OSError as error:
            _log.warning(
                "What MLflow did not take of step %r cannot be kept in %s: %s",
                self.name, step, error.strerror,
            )  # fmt: skip


def keep_end(step: Path, record: StepRecord) -> None:
    """Keep how a step ended whose worker was lost, for `complete`.

    Args:
        step: The folder of the step.
        record: Its end. Where it had no run, what is kept of its begin stays.
    """
    begun = _read_record(step) or record
    end = replace(begun, status=record.status, ended=record.ended, end_tags=record.end_tags)
    end.keep(step)


def list_recorded(work: Path) -> list[Path]:
    """Return the folders of the steps of which MLflow does not have all."""
    return sorted(path.parent for path in work.glob(f"*/{_RECORD}"))


def make_run(client: MlflowClient, record: StepRecord) -> str:
    """Make the run of a step, and return its id.

    Raises:
        Exception: Whatever MLflow raises.
    """
    tags = {**record.tags, _NAME: record.name}
    if record.parent:
        tags[PARENT_TAG] = record.parent
    began = None if record.started is None else int(1000 * record.started)
    made = client.create_run(
        record.experiment_id, start_time=began, tags=clean_tags(tags, client.tracking_uri)
    )
    _log_params(client, str(made.info.run_id), record)
    return str(made.info.run_id)


def _log_params(client: MlflowClient, run_id: str, record: StepRecord) -> None:
    from mlflow.entities import Param

    shown = {key: redact_param(key, str(value)) for key, value in record.params.items()}
    params = [Param(key, clean_text(value, _VALUE_CHARS)) for key, value in shown.items()]
    for first in range(0, len(params), _BATCH):
        client.log_batch(run_id, params=params[first : first + _BATCH])


def provide_run(client: MlflowClient, step: Path, record: StepRecord) -> str:
    """Return the id of a step's run: the one it has, one that its job made, or a new one.

    Args:
        client: A client of the store.
        step: The folder of the step, which gets the id.
        record: What the run is to be.

    Raises:
        Exception: Whatever MLflow raises.
    """
    started = step / STARTED
    run_id = started.read_text(encoding="utf-8") if started.exists() else ""
    if not run_id:
        name = record.tags.get(f"{TAG}step", record.name).replace("'", "")
        of_step = f"tags.`{PARENT_TAG}` = '{record.parent}' and tags.`{TAG}step` = '{name}'"
        found = client.search_runs([record.experiment_id], of_step, order_by=["start_time"])
        run_id = str(found[0].info.run_id) if found else make_run(client, record)
        if found:  # its report knows better what its component is
            known = {**record.tags, **found[0].data.tags, _NAME: record.name}
            known |= {} if record.started is None else {BEGAN_TAG: str(record.started)}
            wanted = {*record.tags, _NAME, BEGAN_TAG} & known.keys()
            set_tags(client, run_id, {key: known[key] for key in wanted})
        for other in found[1:]:  # several processes of the job made one each: these are no steps
            for key in (PARENT_TAG, f"{TAG}step"):
                client.delete_tag(other.info.run_id, key)
        with contextlib.suppress(OSError):
            step.mkdir(parents=True, exist_ok=True)
            started.write_text(run_id, encoding="utf-8")
    return run_id


def complete(client: MlflowClient, step: Path) -> None:
    """Give MLflow what it does not have of a step: its run, tags, files and end.

    A step of which no end is kept, because its runner was killed, stays RUNNING.

    Args:
        client: A client of the store.
        step: The folder of the step, with a record.

    Raises:
        Exception: Whatever MLflow raises.
    """
    if (record := _read_record(step)) is None:
        return
    run_id = provide_run(client, step, record)
    _log_params(client, run_id, record)  # the answer to making it may have been lost
    set_tags(client, run_id, record.end_tags)
    upload_files(client, run_id, step)
    if record.ended is not None:
        end_run(client, run_id, record.status, ended=record.ended)
    (step / _RECORD).unlink()


def share_run(path: Path, delivery: Delivery) -> None:
    """Let the journal of a step without a run report to the step's run, which is made if need be.

    Args:
        path: The journal.
        delivery: What it says.

    Raises:
        Exception: Whatever MLflow raises.
    """
    run, step = delivery.run, _find_step(path)
    if run.run_id is not None or step is None or not delivery.is_left:
        return
    if (record := _read_record(step)) is None:  # MLflow has all else of the step
        run.run_id = (step / STARTED).read_text(encoding="utf-8") or None
    else:
        run.run_id = provide_run(open_client(run.tracking_uri), step, record)
    run.own_run = run.own_run and run.run_id is None


def _find_step(journal: Path) -> Path | None:
    """Return the folder of the step whose journal this is; None if it is no step's."""
    # It is in `journals` or `measured`, and for a later attempt in a folder of that.
    return next((one for one in list(journal.parents)[1:3] if (one / STARTED).is_file()), None)


def find_measured(journal: Path) -> Path | None:
    """Return where the runner keeps what it measured beside a report; None for no step's report.

    Args:
        journal: Where a step's job keeps a report of its own.
    """
    if (step := _find_step(journal)) is None:
        return None
    kind, *attempt = journal.parent.relative_to(step).parts
    return step.joinpath(_MEASURED, *attempt) if kind == _JOURNALS else None


def list_stand_ins(journal: Path, run_id: str | None) -> list[Path]:
    """Return what the runner measured beside a report: it is not sent, once that is.

    Args:
        journal: Where the report was kept.
        run_id: The run to which it was sent.
    """
    step, measured = _find_step(journal), find_measured(journal)
    if step is None or measured is None:
        return []
    is_of_step = run_id == (step / STARTED).read_text(encoding="utf-8")
    return sorted(measured.glob(f"*{SUFFIX}")) if is_of_step else []


def is_stand_in(journal: Path) -> bool:
    """Return whether the runner measured this of a step whose job reported something itself."""
    if (step := _find_step(journal)) is None:
        return False
    kind, *attempt = journal.parent.relative_to(step).parts
    return kind == _MEASURED and step.joinpath(_JOURNALS, *attempt).exists()


def is_for_step(journal: Path, run_id: str) -> bool:
    """Return whether a report is for the run of its step: the job may report to others, too.

    Args:
        journal: The journal.
        run_id: The run of the step; empty while it has none.
    """
    delivery = _read_delivery(journal)
    return delivery.get("left") is True or (bool(run_id) and delivery.get("run_id") == run_id)


def list_other_stores(journals: Path, uri: str) -> list[str]:
    """Return the stores to which the reports in a folder go, but for one.

    Args:
        journals: The folder.
        uri: The store that is left out.
    """
    named = {_read_delivery(path).get("tracking_uri") for path in journals.glob(f"*{SUFFIX}")}
    stores = [one for one in named if isinstance(one, str) and one]
    return sorted(one for one in stores if not is_same_store(one, uri))


def _read_delivery(journal: Path) -> dict[str, Any]:
    """Return where the report of a journal goes, as its first line says; nothing if damaged."""
    delivery = read_head(journal).get("delivery")
    return delivery if isinstance(delivery, dict) else {}


def _read_record(step: Path) -> StepRecord | None:
    """Return what is kept of a step; None if that is nothing, as on a full disk."""
    try:
        return StepRecord(**json.loads((step / _RECORD).read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError):
        return None
