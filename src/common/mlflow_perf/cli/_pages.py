"""Make the HTML page of a run, its workflow and its spans, for `report` and `spans log`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mlflow_perf.analysis.scaling_runs import group_points, study_scaling
from mlflow_perf.analysis.workflow import Workflow, build_workflow
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.errors import MissingDependencyError, RunNotFoundError, SettingError
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.tracking.load import is_run_id, make_client, read_documents
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.run_files import fetch_file, list_files
from mlflow_perf.tracking.search import find_children, find_runs, get_run, get_runs

REPORT_FILE = "perf_report.html"

_RUNS_OF_COMPONENT = 200
_SPANS = "spans/spans.sqlite3"
_log = get_logger(__name__)


@dataclass(frozen=True)
class Spans:
    """The spans that a page shows.

    Attributes:
        db: Their database; None for the one in the run, if there is one.
        root: Type of the root spans; None for Parsl's tasks, else for the most frequent type.
    """

    db: Path | None = None
    root: str | None = None


@dataclass(frozen=True)
class Page:
    """A page and its subject.

    Attributes:
        html: The page.
        run: The run; None for a file or a folder.
        workflow: The workflow whose parent is the run.
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
        RunNotFoundError: There is no such run or file, or it holds nothing to show.
        DocumentError: A file is not a document that this version reads.
        SpansError: `spans` names a file that is no database, or a type that it does not hold.
    """
    from mlflow_perf.reports.html import render

    # The documents are read below, node by node: a thousand of them would fill the memory.
    run = get_runs([source], documents=False)[0] if is_run_id(source) else None
    steps = [] if run is None else find_children(run, documents=True)
    workflow = build_workflow(get_run(source), steps) if steps else None
    wanted = spans or Spans()
    pictures: Mapping[str, str] = {}
    if wanted.db is not None:
        pictures = _draw(wanted.db, wanted.root)
    elif run is not None and run.run_id is not None:
        client = make_client()
        if any(file.path == _SPANS for file in list_files(client, run.run_id, "spans")):
            with tempfile.TemporaryDirectory(prefix="mlflow-perf-") as folder:
                db = fetch_file(client, run.run_id, _SPANS, Path(folder))
                try:
                    pictures = _draw(db, wanted.root)
                except MissingDependencyError as error:
                    _log.warning("The spans of the run are not in the report: %s", error)
    nodes = _read_nodes(source, needed=workflow is None and not pictures)
    if run is not None and run.component is not None:
        pictures = {**pictures, **_draw_scaling(run.component)}
    flow = None if workflow is None else workflow.as_dict()
    title = None if run is None else run.component or run.name
    page = render(nodes, title=title, workflow=flow, pictures=pictures, run=run)
    return Page(page, run, workflow)


def log_page(page: Page) -> list[str]:
    """Log a page, and the workflow as JSON, to the page's run; return their paths.

    Raises:
        RunNotFoundError: The page shows a file, not a run.
    """
    if page.run is None or page.run.run_id is None:
        raise RunNotFoundError("A file is no run to which a report could be logged.")
    client, run_id, paths = make_client(), page.run.run_id, [REPORT_FILE]
    client.log_text(run_id, page.html, REPORT_FILE)
    if page.workflow is not None:
        paths.append("perf/workflow.json")
        client.log_dict(run_id, page.workflow.as_dict(), paths[-1])
    return paths


def _read_nodes(source: str, *, needed: bool) -> Iterator[NodeDocument]:
    """Yield the nodes of a source; none if it has no documents and none are needed."""
    documents = read_documents(source)
    try:
        first = next(documents)
    except RunNotFoundError:
        if needed:
            raise
        return
    for document in chain([first], documents):
        yield from document.all_nodes()


def _draw_scaling(component: str) -> dict[str, str]:
    """Return the picture of a component's scaling, if its runs had several numbers of nodes."""
    from mlflow_perf.reports.scaling_picture import draw_scaling

    try:
        runs = find_runs(component, max_results=_RUNS_OF_COMPONENT, documents=False)
        points = group_points(runs).get(component, [])
        study = study_scaling(component, points)
    except (SettingError, RunNotFoundError):
        return {}  # one number of nodes, or no run that ended well
    return {f"Scaling of {component}": draw_scaling(study)}


def _draw(db: Path, root: str | None) -> Mapping[str, str]:
    from mlflow_perf import spans
    from mlflow_perf.spans.database.event_arrays import DEFAULT_ROOT

    if root is None:
        counts = {row["type"]: row["spans"] for row in spans.types(db)}
        is_parsl = DEFAULT_ROOT in counts or not counts
        root = DEFAULT_ROOT if is_parsl else max(counts, key=lambda name: counts[name])
    pictures: Mapping[str, str] = spans.report_pictures(db, root)
    return pictures
