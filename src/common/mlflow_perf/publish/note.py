"""The text for a run's overview page in MLflow. Imports the report's figures and the document.

MLflow shows the first few lines and folds the rest: what the run is and the links come first.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from mlflow_perf.analysis.markdown import escape
from mlflow_perf.model.document import PerfDocument, worst_status
from mlflow_perf.reports.tables import Tile, build_tiles, choose_verdict
from mlflow_perf.reports.workflow_page import build_workflow_page
from mlflow_perf.tracking.page_probe import PAGE_PATH

__all__ = [
    "NOTE_TAG",
    "REPORT_FILE",
    "Links",
    "may_replace",
    "run_note",
    "whole_tags",
    "workflow_note",
]

NOTE_TAG = "mlflow.note.content"
REPORT_FILE = "perf_report.html"

# Shown nowhere: a Markdown reference that nothing refers to.
_MARK = "\n\n[//]: # (mlflow-perf {})"
_MARKED = re.compile(r"(.*)\n\n\[//\]: # \(mlflow-perf ([0-9a-f]{16})\)\s*", re.DOTALL)
# With these figures the verdict would be folded.
_IN_THE_REPORT = ("Disk read", "Net received")
# Their own pages, not MLflow's UI, show the runs of these stores.
_OTHER_UI = ("azureml", "databricks")


class Links:
    """Ways from a run's overview to its reports.

    They are relative to the MLflow UI, which a user may reach by another name than the job did.

    Args:
        run_id: The run.
        experiment_id: Its experiment; None where it is not known.
        tracking_uri: The store.
        page: Whether the store's server has the page `/perf`.
    """

    def __init__(
        self, run_id: str, experiment_id: str | None, *, tracking_uri: str = "", page: bool = False
    ) -> None:
        self.known: list[tuple[str, str]] = []
        if experiment_id and not tracking_uri.startswith(_OTHER_UI):
            at = f"#/experiments/{quote(experiment_id, safe='')}/runs/{quote(run_id, safe='')}"
            report = f"{at}/artifacts/{REPORT_FILE}?workflowType=machine_learning"
            self.known.append(("Report", report))
        if page:
            self.known.append(("Performance page", f".{PAGE_PATH}/run?{urlencode({'id': run_id})}"))

    def __str__(self) -> str:
        links = [f"[{name}]({address})" for name, address in self.known]
        if not any(name == "Report" for name, _ in self.known):
            links.insert(0, f"report: `{REPORT_FILE}` among the artifacts")
        return " · ".join(links)


def run_note(document: PerfDocument, links: Links) -> str:
    """Return the headline figures, the verdict and the ways to the report, as Markdown.

    Args:
        document: What the nodes reported that have ended.
        links: The ways.
    """
    nodes = [document.nodes[index] for index in sorted(document.nodes)]
    name = next((node.component for node in nodes if node.component), None) or "run"
    tiles = build_tiles([node.summary for node in nodes], document.run_summary)
    verdict = choose_verdict(node.extra for node in nodes).get("advice", "")
    return _note(name, _status(document), links, tiles, [verdict])


def workflow_note(data: Mapping[str, Any], links: Links) -> str:
    """Return the same for a workflow's parent run.

    Args:
        data: The workflow, as in `perf/workflow.json`.
        links: The ways.
    """
    flow = build_workflow_page(data)
    return _note(flow.name or "workflow", flow.status, links, flow.tiles, flow.findings)


def _note(
    name: str, status: str, links: Links, tiles: Iterable[Tile], findings: Iterable[str]
) -> str:
    head = " · ".join(part for part in (status.capitalize(), str(links)) if part)
    figures = " · ".join(_figure(tile) for tile in tiles if tile.label not in _IN_THE_REPORT)
    lines = [f"**{escape(name)}** {head}", figures, *(f"> {escape(f)}" for f in findings if f)]
    text = "\n\n".join(line for line in lines if line)
    return text + _MARK.format(_digest(text))


def _figure(tile: Tile) -> str:
    detail = f" ({escape(tile.detail)})" if tile.detail else ""
    return f"{escape(tile.label)} **{escape(tile.value)}**{detail}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def may_replace(note: str) -> bool:
    """Tell whether a note may be replaced: empty, or ours with not a letter changed since."""
    found = _MARKED.fullmatch(note)
    return not note.strip() or (found is not None and _digest(found[1]) == found[2])


def _status(document: PerfDocument) -> str:
    return worst_status(node.status or "" for node in document.nodes.values())


def whole_tags(document: PerfDocument) -> dict[str, str]:
    """Return the tags that speak for all nodes of a run, as its report does."""
    verdict = choose_verdict(document.nodes[index].extra for index in sorted(document.nodes))
    tags = {**verdict, "status": _status(document)}
    return {f"mlflow_perf.{name}": text for name, text in tags.items() if text}
