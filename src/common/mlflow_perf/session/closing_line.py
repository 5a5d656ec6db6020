"""The line on the standard error with the verdict of a run and the link to its report."""

from __future__ import annotations

import contextlib
import os
import sys

from mlflow_perf.core.clean_text import clean
from mlflow_perf.core.safe_log import takes_text
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.tracking.run_handle import RunHandle


def describe_run(run: RunHandle, document: NodeDocument) -> str:
    """Return one line with the component, its verdict, the run and how to see the report."""
    verdict = ": ".join(
        str(document.extra[name]) for name in ("bottleneck", "advice") if document.extra.get(name)
    )
    if document.extra.get("kind") == "too_short":
        verdict = str(document.extra.get("advice"))
    status = "" if document.status == "FINISHED" else (document.status or "").lower()
    place = run.link() or f"mlflow-perf show {run.run_id}"
    # Of many runs of one script, such as trials, each has a name of its own.
    is_named = run.run_name not in (None, "", document.component)
    name = f"{document.component} ({run.run_name})" if is_named else document.component
    parts = (f"mlflow-perf: {name}", status, verdict, f"run {run.run_id}", place)
    text = " | ".join(part for part in parts if part)
    return clean(text)  # a name may hold anything


def write_closing_line(run: RunHandle, document: NodeDocument) -> None:
    """Write the line of one run."""
    write_note(describe_run(run, document))


def write_note(text: str) -> None:
    """Write a line to the standard error, unless its last line is a result."""
    with contextlib.suppress(OSError):
        # Airflow's BashOperator reads both streams as one, and takes the last line.
        if "AIRFLOW_CTX_DAG_ID" in os.environ and os.path.sameopenfile(1, 2):
            return
    write_line(text)


def write_line(text: str) -> None:
    """Write a line to the standard error; nothing happens if that is closed."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if not takes_text():
            return
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
