"""The destination of a recording's document, for blocks, commands and autologged runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from mlflow_perf._version import __version__
from mlflow_perf.core.program_age import program_age_sec
from mlflow_perf.core.settings import Settings
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.node.place import Node
from mlflow_perf.node.slurm_job import tag_queue
from mlflow_perf.publish.final_document import tag_document
from mlflow_perf.readers import host_facts
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.reporting_notes import note_own
from mlflow_perf.tracking.run_handle import RunHandle


def name_process() -> str:
    """Return the component's default name: that of the script or the notebook."""
    # An embedded interpreter has no arguments, or gives what is no text.
    started = next(iter(getattr(sys, "argv", None) or ()), "")
    started = started if isinstance(started, str) else ""
    script = Path(started or "python").stem
    if script == "ipykernel_launcher":
        # Jupyter Server tells its kernels the notebook's path.
        return Path(os.environ.get("JPY_SESSION_NAME", "")).stem or "notebook"
    if script == "__main__":  # `python -m pytest`
        script = Path(started).parent.name
    if script == "-c" and "_pytest" in sys.modules:  # a worker of pytest-xdist
        return "pytest"
    return script if script not in ("", "-c") else "python"


def describe_node(node: Node) -> dict[str, Any]:
    """Return the facts of a node and of this process, as a document has them."""
    return {**node.as_dict(), "pid": os.getpid(), **host_facts()}


def address(
    document: NodeDocument, run: RunHandle, *, name: str, node: Node, settings: Settings
) -> Delivery:
    """Return the delivery of a document to a run.

    Args:
        document: The document; the delivery gives it the run's id.
        run: The run.
        name: The component.
        node: This process's place in its job.
        settings: Where in the run, and which metrics.
    """
    return Delivery(
        document,
        run,
        index=node.index,
        artifact_path=settings.artifact_path,
        metrics_prefix=settings.metrics_prefix,
        tags={
            "mlflow_perf.version": __version__,
            "mlflow_perf.component": name,
            **node.tags(),
            **tag_document(document),
        },
        all_metrics=settings.metrics == "all",
    )


def tag_end(delivery: Delivery, *, is_command: bool) -> None:
    """Add the tags of a job that has ended: its time in the queue, and what we took before it.

    Args:
        delivery: The report.
        is_command: Whether this process wraps the job.
    """
    delivery.tags.update(tag_queue() if delivery.index == 0 else {})
    if is_command:
        note_own(delivery, age_sec=program_age_sec())
