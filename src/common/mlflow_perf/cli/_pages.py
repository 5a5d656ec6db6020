"""The page of a run, of its workflow and of its spans: what `report` and `spans log` write."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mlflow_perf.analysis.workflow import Workflow, build_workflow
from mlflow_perf.errors import MissingDependencyError, RunNotFoundError
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.tracking.load import fetch_file, is_run_id, new_client, read_documents
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.search import get_runs

__all__ = ["REPORT_FILE", "Page", "Spans", "log_page", "make_page"]

REPORT_FILE = "perf_report.html"

_SPANS = "spans/spans.sqlite3"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Spans:
    """Which spans a page shows.

    Attributes:
        db: Their database; None for the one that the run holds, if it holds one.
        root: Type of the root spans; None for the tasks of Parsl, or else the most frequent type.
    """

    db: Path | None = None
    root: str | None = None


@dataclass(frozen=True)
class Page:
    """A page and what it is about.

    Attributes:
        html: The page.
        run: The run; None of a file or a folder.
        workflow: The workflow that the run is the parent of.
    """

    html: str
    run: PerfRun | None = None
    workflow: Workflow | None = None


def make_page(source: str, spans: Spans | None = None) -> Page:
    """Return the page of a run and its children, or of a file or folder.

    Args:
        source: A run id or a path.
        spans: Which spans to show.

    Raises:
        RunNotFoundError: There is no such run or file, or nothing in it to show.
        DocumentError: A file is not a document that this version reads.
        SpansError: `spans` names no database, or a type that it does not have.
    """
    from mlflow_perf.reports.html import render

    # Its documents are read below, node by node: those of a thousand would fill the memory.
    run = get_runs([source], documents=False)[0] if is_run_id(source) else None
    workflow = None if run is None else build_workflow(run)
    pictures = _pictures(run, spans or Spans())
    nodes = _nodes(source, needed=workflow is None and not pictures)
    flow = None if workflow is None else workflow.as_dict()
    title = None if run is None else run.component or run.name
    return Page(render(nodes, title=title, workflow=flow, pictures=pictures), run, workflow)


def log_page(page: Page) -> list[str]:
    """Log a page, and the workflow as JSON, to the run that it is about; return their paths.

    Raises:
        RunNotFoundError: It is about no run.
    """
    if page.run is None or page.run.run_id is None:
        raise RunNotFoundError("A file is no run to which a report could be logged.")
    client = new_client()
    client.log_text(page.run.run_id, page.html, REPORT_FILE)
    if page.workflow is None:
        return [REPORT_FILE]
    client.log_dict(page.run.run_id, page.workflow.as_dict(), "perf/workflow.json")
    return [REPORT_FILE, "perf/workflow.json"]


def _nodes(source: str, *, needed: bool) -> Iterator[NodeDocument]:
    """Yield the nodes of a source; none where a workflow's parent has no documents of its own."""
    documents = read_documents(source)
    try:
        first = next(documents)
    except RunNotFoundError:
        if needed:
            raise
        return
    for document in chain([first], documents):
        yield from document.nodes.values()


def _pictures(run: PerfRun | None, spans: Spans) -> Mapping[str, str]:
    """Return the pictures of the spans that are named, or of those that the run holds."""
    if spans.db is not None:
        return _drawn(spans.db, spans.root)
    if run is None or run.run_id is None:
        return {}
    with tempfile.TemporaryDirectory(prefix="mlflow-perf-") as folder:
        found = _downloaded(run.run_id, folder)
        try:
            return {} if found is None else _drawn(found, spans.root)
        except MissingDependencyError as error:
            _log.warning("The spans of the run are not in the report: %s", error)
            return {}


def _downloaded(run_id: str, folder: str) -> Path | None:
    client = new_client()
    if not any(file.path == _SPANS for file in client.list_artifacts(run_id, "spans")):
        return None
    return fetch_file(client, run_id, _SPANS, Path(folder))


def _drawn(db: Path, root: str | None) -> Mapping[str, str]:
    from mlflow_perf import spans
    from mlflow_perf.spans.analyses.roots import DEFAULT_ROOT

    counts = {row["type"]: row["spans"] for row in spans.types(db)} if root is None else {}
    if root is None:
        root = DEFAULT_ROOT if DEFAULT_ROOT in counts else max(counts, key=lambda k: counts[k],
                                                               default=DEFAULT_ROOT)  # fmt: skip
    pictures: Mapping[str, str] = spans.report_pictures(db, root)
    return pictures
