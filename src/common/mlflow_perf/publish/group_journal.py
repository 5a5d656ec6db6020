"""The journal of a group: what `recover` needs to end the group's parent run."""

from __future__ import annotations

import socket
from pathlib import Path

from mlflow_perf.model.document import NodeDocument
from mlflow_perf.publish.journal import SUFFIX, Journal, JournalFacts
from mlflow_perf.publish.journal_file import read_head
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.perf_run import GROUP_TAG
from mlflow_perf.tracking.run_handle import RunHandle

GROUP_PART = ".group-"
"""Part of the file name of each group's journal."""


def open_group_journal(name: str, run: RunHandle, folder: Path) -> tuple[Delivery, Journal]:
    """Open the journal of a group before its run is created, so that no kill leaves it RUNNING.

    Args:
        name: The group.
        run: Where its run is to be created.
        folder: Folder of the journals.
    """
    run.run_name, run.own_run = f"{name}.group", True  # the journal is named after it
    document = NodeDocument(node={"hostname": socket.gethostname()}, component=name)
    delivery = Delivery(document, run, tags={GROUP_TAG: name})
    return delivery, Journal(delivery, JournalFacts(), folder=folder)


def count_unsent_steps(run_id: str, folder: Path) -> int:
    """Return how many steps of a group have their report in a journal, and not in MLflow.

    Args:
        run_id: The group's run.
        folder: The folder of its journals, which its steps use as well.
    """
    unsent = set()
    for path in folder.glob(f"*{SUFFIX}"):
        header = read_head(path).get("delivery")
        if isinstance(header, dict) and header.get("parent_id") == run_id:
            # Each node of a step has a journal.
            unsent.add(header.get("run_id") or header.get("job_key") or path.name)
    return len(unsent)
