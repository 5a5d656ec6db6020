"""The text of a run's overview page in MLflow.

MLflow shows the first few lines and folds the rest, so that the advice comes first, then the run's
name and the links.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mlflow_perf.analysis.findings import Finding, findings_of
from mlflow_perf.analysis.markdown import escape
from mlflow_perf.analysis.phases import describe_phase, read_phases
from mlflow_perf.core.format import duration
from mlflow_perf.core.json_io import to_json
from mlflow_perf.core.uris import encode_query
from mlflow_perf.model.document import PerfDocument, worst_status
from mlflow_perf.reports.tables import Tile, build_tiles, can_be_judged, choose_verdict
from mlflow_perf.reports.workflow_page import build_workflow_page
from mlflow_perf.tracking.page_probe import PAGE_PATH

if TYPE_CHECKING:
    from mlflow.entities import Run

NOTE_TAG = "mlflow.note.content"
REPORT_FILE = "perf_report.html"

# A Markdown reference that nothing refers to is shown nowhere.
_MARK = "\n\n[//]: # (mlflow-perf {})"
_MARKED = re.compile(r"(.*)\n\n\[//\]: # \(mlflow-perf ([0-9a-f]{16})\)\s*", re.DOTALL)
# The tables of a MySQL of older defaults have the characters of Windows' Latin-1 alone.
_PLAIN = str.maketrans({"≥": ">=", "→": "->", "−": "-"})
_MOST_FINDINGS = 3
_MOST_PHASES = 4
# These stores show runs on pages of their own, not in MLflow's UI.
_OTHER_UI = ("azureml", "databricks")


class Links:
    """The links from a run's overview to its reports.

    They are relative to MLflow's UI, which a user may reach under another name than the job did.

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
            query = encode_query(workflowType="machine_learning")
            self.known.append(("Report", f"{at}/artifacts/{REPORT_FILE}?{query}"))
        if page:
            self.known.append(("Performance page", f".{PAGE_PATH}/run?{encode_query(id=run_id)}"))

    def __str__(self) -> str:
        links = [f"[{name}]({address})" for name, address in self.known]
        if not any(name == "Report" for name, _ in self.known):
            links.insert(0, f"report: `{REPORT_FILE}` among the artifacts")
        return " · ".join(links)


def renew_note(
    run: Run, text: Callable[[Links], str], *, tracking_uri: str, page: bool
) -> dict[str, str]:
    """Return the tag with a run's new overview; none where a person has written the present one.

    Args:
        run: The run as it is now: somebody may describe it while its job runs for hours.
        text: Takes the links to the run's reports and returns Markdown.
        tracking_uri: The store.
        page: Whether the store's server has the page `/perf`.
    """
    if not may_replace(run.data.tags.get(NOTE_TAG, "")):
        return {}
    experiment_id = str(run.info.experiment_id)
    links = Links(run.info.run_id, experiment_id, tracking_uri=tracking_uri, page=page)
    return {NOTE_TAG: text(links)}


def write_run_note(document: PerfDocument, links: Links) -> str:
    """Return the advice, the links to the report and the headline figures, as Markdown.

    Args:
        document: The reports of the nodes that have ended.
        links: The links.
    """
    nodes = [document.nodes[index] for index in sorted(document.nodes)]
    name = next((node.component for node in nodes if node.component), None) or "run"
    tiles = build_tiles(
        [node.summary for node in nodes],
        document.run_summary,
        is_cut_off=any(node.is_cut_off for node in nodes),
    )
    findings = _judge(document)
    verdict = choose_verdict(findings, (node.extra for node in nodes)).get("advice", "")
    others = [finding.sentence for finding in findings[1:_MOST_FINDINGS]]
    for further, part in sorted(document.components.items()):
        status = _find_status(part).lower() or "reported"
        took = duration(part.run_summary.get("run_duration_sec"))
        stored = (node.extra for node in part.all_nodes())
        advice = choose_verdict(_judge(part), stored).get("advice", "")
        others.append(f"{further}: {status} in {took}. {advice}".rstrip())
    found = read_phases(nodes[0]) if nodes else []
    phases = ""
    if len(found) > 1:
        longest = sorted(found, key=lambda phase: phase.start_s - phase.end_s)[:_MOST_PHASES]
        texts = [describe_phase(phase).rstrip(".") for phase in found if phase in longest]
        of_node = "" if len(nodes) == 1 else f" of node {nodes[0].node.get('index', 0)}"
        phases = f"Phases{of_node}: {'; '.join(texts)}."
    sentences = [verdict, *others]
    return _write_note(name, _find_status(document), links, tiles, sentences, phases=phases)


def write_workflow_note(data: Mapping[str, Any], links: Links) -> str:
    """Return the same for the parent run of a workflow.

    Args:
        data: The workflow, as in `perf/workflow.json`.
        links: The links.
    """
    flow = build_workflow_page(data)
    return _write_note(flow.name or "workflow", flow.status, links, flow.tiles, flow.findings)


def _write_note(
    name: str,
    status: str,
    links: Links,
    tiles: Iterable[Tile],
    findings: Iterable[str],
    *,
    phases: str = "",
) -> str:
    head = " · ".join(part for part in (status.capitalize(), str(links)) if part)
    figures = []
    for tile in tiles:
        # With the other figures MLflow would fold the links.
        if not tile.minor:
            detail = f" ({escape(tile.detail)})" if tile.detail else ""
            figures.append(f"{escape(tile.label)} **{escape(tile.value)}**{detail}")
    first, *others = [escape(finding) for finding in findings if finding] or [""]
    title = f"**{escape(name)}** {head}"
    lines = [f"**{first}**" if first else "", escape(phases), title, " · ".join(figures)]
    lines += [f"> {finding}" for finding in others]
    text = "\n\n".join(line for line in lines if line).translate(_PLAIN)
    return text + _MARK.format(_digest(text))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def may_replace(note: str) -> bool:
    """Return whether a note may be replaced: it is empty, or ours and unchanged."""
    found = _MARKED.fullmatch(note)
    return not note.strip() or (found is not None and _digest(found[1]) == found[2])


def _judge(document: PerfDocument) -> list[Finding]:
    """Return the findings of the nodes that can be judged."""
    judged = {index: node for index, node in document.nodes.items() if can_be_judged(node)}
    return findings_of(PerfDocument(judged)) if judged else []


def _find_status(document: PerfDocument) -> str:
    return worst_status(node.status or "" for node in document.all_nodes())


def tag_run(document: PerfDocument) -> dict[str, str]:
    """Return the tags that describe all nodes of a run together."""
    stored = (document.nodes[index].extra for index in sorted(document.nodes))
    verdict = choose_verdict(_judge(document), stored)
    tags = {**verdict, "status": _find_status(document), "cause": document.cause}
    if document.nodes:
        # Each node writes the tags of the run; the host is the first one's whoever writes last.
        tags["hostname"] = str(document.nodes[min(document.nodes)].node.get("hostname", ""))
    if document.components:
        tags["components"] = to_json(sorted(document.components))
    return {f"mlflow_perf.{name}": text for name, text in tags.items() if text}
