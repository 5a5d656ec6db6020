"""What MLflow is to have of a pipeline's step, kept in the step's folder until MLflow has it."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.uris import redact_param
from mlflow_perf.tracking.client import end_run
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.perf_run import PARENT_TAG, TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient

STARTED = "started"
"""File in the folder of a step, with its run's id; empty while it has no run."""

KEPT_FILES = (("code/outputs", "outputs"), ("code/logs", "logs"))
"""Folders that Azure ML keeps of a step's working folder, and their artifact paths."""

_FILES = (("logs", "logs"), *KEPT_FILES)

_RECORD = "record.json"
_NAME = "mlflow.runName"
_KILLED = {f"{TAG}error": "the runner of its pipeline was killed"}
# Azure ML's REST interface v2.0 takes less than MLflow's own server.
_BATCH = 100
_VALUE_CHARS = 500


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
        status: How it ended; until then what it is if its runner is killed.
        ended: Unix time of its end; None if unknown.
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
    end_tags: dict[str, str] = field(default_factory=lambda: dict(_KILLED))

    def keep(self, step: Path) -> None:
        """Write it into the folder of the step, for `complete`."""
        with contextlib.suppress(OSError):
            step.mkdir(parents=True, exist_ok=True)
            (step / _RECORD).write_text(json.dumps(asdict(self)), encoding="utf-8")


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
    made = client.create_run(record.experiment_id, start_time=began, tags=tags)
    _log_params(client, str(made.info.run_id), record)
    return str(made.info.run_id)


def _log_params(client: MlflowClient, run_id: str, record: StepRecord) -> None:
    from mlflow.entities import Param

    shown = {key: redact_param(key, str(value)) for key, value in record.params.items()}
    params = [Param(key, value[:_VALUE_CHARS]) for key, value in shown.items()]
    for first in range(0, len(params), _BATCH):
        client.log_batch(run_id, params=params[first : first + _BATCH])


def provide_run(client: MlflowClient, step: Path, record: StepRecord) -> str:
    """Return the id of a step's run: the one it has, one that its report made, or a new one.

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
        found = client.search_runs([record.experiment_id], of_step, max_results=1)
        run_id = str(found[0].info.run_id) if found else make_run(client, record)
        with contextlib.suppress(OSError):
            step.mkdir(parents=True, exist_ok=True)
            started.write_text(run_id, encoding="utf-8")
    return run_id


def upload_files(client: MlflowClient, run_id: str, step: Path) -> None:
    """Give the run of a step its logs, and the files that Azure ML keeps of it.

    Args:
        client: A client of the store.
        run_id: The run.
        step: The folder of the step.

    Raises:
        Exception: Whatever MLflow raises.
    """
    for folder, path in _FILES:
        kept = step / folder
        if kept.is_dir() and any(kept.iterdir()):
            client.log_artifacts(run_id, str(kept), path)


def complete(client: MlflowClient, step: Path) -> None:
    """Give MLflow what it does not have of a step: its run, tags, files and end.

    Args:
        client: A client of the store.
        step: The folder of the step, with a record.

    Raises:
        Exception: Whatever MLflow raises.
    """
    try:
        record = StepRecord(**json.loads((step / _RECORD).read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError):
        return  # the disk was full
    run_id = provide_run(client, step, record)
    _log_params(client, run_id, record)  # a run that its report has made has none
    for key, value in {**record.tags, **record.end_tags}.items():
        client.set_tag(run_id, key, value)
    upload_files(client, run_id, step)
    end_run(client, run_id, record.status, ended=record.ended or time.time())
    (step / _RECORD).unlink()


def share_run(path: Path, delivery: Delivery) -> None:
    """Let the journal of a step without a run of its own report to the run that the step has.

    Args:
        path: The journal.
        delivery: What it says.
    """
    started = _find_started(path) if delivery.run.run_id is None else None
    if run_id := started.read_text(encoding="utf-8") if started is not None else "":
        delivery.run.run_id, delivery.run.own_run = run_id, False


def keep_run(path: Path, run_id: str | None) -> None:
    """Let the other journals of a step, as those of its other attempts, report to this run too."""
    started = _find_started(path)
    if run_id and started is not None and not started.read_text(encoding="utf-8"):
        with contextlib.suppress(OSError):
            started.write_text(run_id, encoding="utf-8")


def _find_started(path: Path) -> Path | None:
    """Return the file with the run of the step that a journal is of; None if it is of none."""
    # In `journals` or `measured`, and for a later attempt in a folder of that.
    found = (folder / STARTED for folder in list(path.parents)[1:3])
    return next((file for file in found if file.is_file()), None)
