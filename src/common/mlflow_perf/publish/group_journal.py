"""The parent run of a group, and its journal: what `recover` needs to make or to end that run."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_perf.errors import DocumentError
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.node.place import detect
from mlflow_perf.publish.journal import REMOVED, SUFFIX, Journal, live
from mlflow_perf.publish.journal_facts import JournalFacts
from mlflow_perf.publish.journal_file import is_same_file, lock, open_journal, read_head
from mlflow_perf.tracking.client import create_run
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.perf_run import GROUP_TAG
from mlflow_perf.tracking.recorded_runs import RECORDING_TAG
from mlflow_perf.tracking.run_handle import RunHandle

if TYPE_CHECKING:
    from mlflow.entities import Run

GROUP_PART = ".group-"
"""Part of the file name of each group's journal."""

NOTES = ".notes"
"""Suffix of the file beside a group's journal in which its steps note what they took."""


def open_group_journal(name: str, run: RunHandle, folder: Path) -> tuple[Delivery, Journal]:
    """Open the journal of a group before its run is created, so that no kill leaves it RUNNING.

    Args:
        name: The group.
        run: Where its run is to be created.
        folder: Folder of the journals.
    """
    run.run_name, run.own_run = f"{name}.group", True  # the journal is named after it
    document = NodeDocument(node=detect().name_job(), component=name)
    delivery = Delivery(document, run, tags={GROUP_TAG: name})
    return delivery, Journal(delivery, JournalFacts(), folder=folder)


def create_group_run(delivery: Delivery, *, experiment_id: str) -> Run:
    """Create the parent run of a group, and return it.

    Args:
        delivery: What its journal says. If its run says when it begins, it begins then.
        experiment_id: Its experiment.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    run, name = delivery.run, delivery.tags[GROUP_TAG]
    tags = {GROUP_TAG: name, RECORDING_TAG: run.nonce, **run.list_tags()}
    return create_run(
        name,
        tracking_uri=run.tracking_uri,
        experiment_id=experiment_id,
        tags=tags | {"mlflow.source.type": "LOCAL"},
        started=run.started,
    )


def remove_left_over_notes(folder: Path) -> None:
    """Delete the notes of killed groups whose journals are gone."""
    # A group has its journal longer than its notes.
    for notes in folder.glob(f"*{GROUP_PART}*-{'[0-9a-f]' * 12}{NOTES}"):
        if not notes.with_suffix(SUFFIX).exists():
            with contextlib.suppress(OSError):
                notes.unlink()


def find_step_journals(run_id: str, folder: Path) -> dict[Path, str]:
    """Return the journals of a group's steps, each with what its step has alone; not those of here.

    Args:
        run_id: The group's run.
        folder: The folder of its journals, which its steps use as well.
    """
    found: dict[Path, str] = {}
    for path in folder.glob(f"*{SUFFIX}"):
        if path.name in live:  # reading it would unlock it
            continue
        head = read_head(path)
        header = head.get("delivery")
        if isinstance(header, dict) and header.get("parent_id") == run_id and REMOVED not in head:
            # Each node of a step has a journal.
            found[path] = str(header.get("run_id") or header.get("job_key") or path.name)
    return found


def is_at_work(path: Path, *, only_sending: bool = False) -> bool:
    """Return whether the process that writes a journal lives: it holds the journal's lock.

    Args:
        path: The journal, of another process.
        only_sending: Whether to ask only for one whose block or command has ended: its journal
            holds the finished report.
    """
    try:
        with open_journal(path) as handle:
            if lock(handle, if_unknown=True) and is_same_file(path, handle):
                return False
            return not only_sending or _holds_report(handle)
    except (DocumentError, OSError):  # gone by now, or not ours
        return False


def was_killed(path: Path) -> bool:
    """Return whether the process that wrote a journal is gone and left no finished report."""
    try:
        with open_journal(path) as handle:
            is_free = lock(handle, if_unknown=True) and is_same_file(path, handle)
            return is_free and not _holds_report(handle)
    except (DocumentError, OSError):  # gone by now, or not ours
        return False


def _holds_report(handle: int) -> bool:
    # Not through a duplicate, as in `recover`.
    with os.fdopen(handle, "rb", closefd=False) as file:
        return any(line.startswith(b'{"final":') for line in file)


def count_unsent_steps(run_id: str, folder: Path) -> tuple[int, int]:
    """Return how many steps of a group are not in MLflow yet: those kept, and those at work.

    Args:
        run_id: The group's run.
        folder: As for `find_step_journals`.
    """
    kept, at_work = set(), set()
    for path, step in find_step_journals(run_id, folder).items():
        if is_at_work(path):
            at_work.add(step)
        elif path.exists():
            kept.add(step)
    return len(kept - at_work), len(at_work)
