"""The journal of a running pipeline: what `recover` needs to end its runs when it was killed.

The reports of its steps are not beside it, but in the pipeline's work folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_perf.model.document import NodeDocument
from mlflow_perf.node.exit_cause import End
from mlflow_perf.node.place import detect
from mlflow_perf.node.step_notes import (
    ENDED,
    RUNNER_KILLED,
    STOP,
    read_end,
    read_status,
    read_stop_note,
)
from mlflow_perf.publish.group_journal import is_at_work
from mlflow_perf.publish.journal import SUFFIX, Journal, live
from mlflow_perf.publish.journal_facts import JournalFacts
from mlflow_perf.publish.journal_file import read_head
from mlflow_perf.publish.step_files import upload_files
from mlflow_perf.publish.step_record import (
    STARTED,
    complete,
    find_measured,
    is_for_step,
    list_recorded,
)
from mlflow_perf.tracking.client import end_run, set_tags
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.perf_run import (
    GROUP_TAG,
    PARENT_TAG,
    PIPELINE_TAG,
    STATUS_TAG,
    TAG,
)
from mlflow_perf.tracking.run_handle import RunHandle

if TYPE_CHECKING:
    from mlflow import MlflowClient

WORK_TAG = "mlflow_perf.work"
"""Tag in the journal with the work folder; the run itself does not have it."""

_PART = ".pipeline-"  # of the file name of each pipeline's journal


def open_pipeline_journal(
    name: str, run: RunHandle, work: Path, folder: Path
) -> tuple[Delivery, Journal]:
    """Open the journal of a pipeline before its run is created, so that no kill leaves it RUNNING.

    Args:
        name: The pipeline.
        run: Where its run is to be created.
        work: The folder of its steps' folders.
        folder: Folder of the journals.
    """
    run.run_name, run.own_run = f"{name}.pipeline", True  # the journal is named after it
    document = NodeDocument(node=detect().name_job(), component=name)
    delivery = Delivery(document, run, tags={PIPELINE_TAG: name, WORK_TAG: str(work)})
    return delivery, Journal(delivery, JournalFacts(), folder=folder)


def _read_tags(head: Mapping[str, Any]) -> dict[str, Any]:
    delivery = head.get("delivery")
    tags = delivery.get("tags") if isinstance(delivery, dict) else None
    return tags if isinstance(tags, dict) else {}


def is_workflow(head: Mapping[str, Any]) -> bool:
    """Return whether a journal is that of a pipeline or group, by its first line."""
    return not _read_tags(head).keys().isdisjoint((WORK_TAG, GROUP_TAG))


def find_work(head: Mapping[str, Any]) -> Path | None:
    """Return the work folder that a journal's first line names; None if it is no pipeline's."""
    work = _read_tags(head).get(WORK_TAG)
    return Path(work) if isinstance(work, str) and Path(work).is_absolute() else None


def list_unsent(work: Path) -> list[Path]:
    """Return the journals of a pipeline's steps that are still to be sent, in their order.

    What the runner measured counts only for a step of which no report of its own is kept.
    """
    found: list[Path] = []

    def order(path: Path) -> tuple[int, Path]:
        return len(path.parts), path  # later attempts have folders of their own

    for step in _list_steps(work):
        own = sorted(step.glob(f"journals/**/*{SUFFIX}"), key=order)
        run_id = (step / STARTED).read_text(encoding="utf-8")
        kept = {find_measured(path) for path in own if is_for_step(path, run_id)}
        measured = sorted(step.glob(f"measured/**/*{SUFFIX}"), key=order)
        found += own + [path for path in measured if path.parent not in kept]
    return found


def list_left_steps(place: Path) -> Iterator[Path]:
    """Yield the journals of the steps of all pipelines whose runners are gone.

    Args:
        place: The folder of the pipelines' journals.
    """
    for path in sorted(place.glob(f"*{_PART}*{SUFFIX}")):
        if path.name in live or is_at_work(path):
            continue
        if (work := find_work(read_head(path))) is not None:
            unsent = list(_list_unsent_deep(work))
            yield from unsent
            # A journal without figures made place for what was measured beside it.
            yield from (left for left in _list_unsent_deep(work) if left not in unsent)


def _list_unsent_deep(work: Path) -> Iterator[Path]:
    """Yield what `list_unsent` lists, before an inner pipeline's journal those of its steps."""
    for path in list_unsent(work):
        # Reading a journal of this process would unlock it.
        inner = None if path.name in live else find_work(read_head(path))
        if inner is not None and not is_at_work(path):
            yield from _list_unsent_deep(inner)
        yield path


def explain_unfinished(work: Path) -> str:
    """Return why the runs of a pipeline without a runner cannot be ended yet; empty if they can.

    Steps that still run on another machine are stopped.
    """
    if not work.is_dir():
        return (
            f"its work folder {work} is not there: bring it back, or make an empty one if it is "
            "gone for good"
        )
    unsent = list_unsent(work)
    if any(map(is_at_work, unsent)):
        with contextlib.suppress(OSError):
            (work / STOP).touch()
        return "a step of its pipeline still runs, and was told to stop"
    return "a report of its steps is not sent yet" if unsent else ""


def end_steps(client: MlflowClient, work: Path) -> None:
    """End the runs that a pipeline has left open: as their steps ended, else as KILLED.

    They get their logs, too, and steps of which MLflow took nothing get their runs.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    for step in list_recorded(work):
        complete(client, step)
    for step in _list_steps(work):
        run_id = (step / STARTED).read_text(encoding="utf-8")
        if not run_id or client.get_run(run_id).info.status != "RUNNING":
            continue
        # The last sign of life: what it has written, or what was measured.
        written = [path.stat().st_mtime for path in step.glob("logs/**/*")]
        with contextlib.suppress(OSError):
            written.append((step / ENDED).stat().st_mtime)
        said = read_status(step)
        note = str(step / f"stopped-{1 + len(list(step.glob('logs/attempt-*')))}")
        if said in ("FINISHED", "FAILED"):
            status, why = read_end(note) or End(said)
        elif said == "KILLED":
            status, why = said, "stopped"
        else:  # the runner may have stopped it first, for a reason of its own
            status, why = read_stop_note(note) or End("KILLED", RUNNER_KILLED)
        tags = {STATUS_TAG: status}  # its report may have ended well before
        set_tags(client, run_id, tags | ({"mlflow_perf.error": why} if why else {}))
        upload_files(client, run_id, step)
        run = client.get_run(run_id)
        lasted = run.data.metrics.get("duration_sec", 0.0)
        ended = max([run.info.start_time / 1000 + lasted, *written])
        end_run(client, run_id, status, ended=ended)


def end_lost_steps(client: MlflowClient, run: RunHandle) -> None:
    """End as KILLED the steps of a pipeline that are RUNNING, but not in its work folder any more.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    if run.run_id is None or run.experiment_id is None:
        return
    of_parent = f"tags.`{PARENT_TAG}` = '{run.run_id}' and attributes.status = 'RUNNING'"
    for left in client.search_runs([run.experiment_id], of_parent):
        if f"{TAG}step" in left.data.tags:
            tags = {STATUS_TAG: "KILLED", "mlflow_perf.error": RUNNER_KILLED}
            set_tags(client, left.info.run_id, tags)
            lasted = left.data.metrics.get("duration_sec", 0.0)
            ended = left.info.start_time / 1000 + lasted
            end_run(client, left.info.run_id, "KILLED", ended=ended)


def _list_steps(work: Path) -> list[Path]:
    return sorted(path.parent for path in work.glob(f"*/{STARTED}"))
