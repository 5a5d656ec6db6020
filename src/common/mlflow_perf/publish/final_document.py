"""The final document of a node: built, judged and tagged in one way by recording and recovery."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow_perf.analysis.findings import findings_of
from mlflow_perf.analysis.phases import find_phases
from mlflow_perf.core.json_io import Columns
from mlflow_perf.model.document import CIRCUMSTANCES, NodeDocument
from mlflow_perf.model.profile_building import build_profile
from mlflow_perf.recorders import transfers as transfer_stats
from mlflow_perf.recorders.collect import collect_stacks
from mlflow_perf.recorders.operations import OperationMetrics
from mlflow_perf.recorders.steps import StepMetrics

_LAST_SEC = 5.0
_TAGGED = ("bottleneck", "advice", *CIRCUMSTANCES, "measured_by")

CAUSE_TAG = "mlflow_perf.cause"
"""Tag of a run that says why its job ended early."""


def make_final_document(
    *,
    node: Mapping[str, Any],
    component: str | None,
    status: str,
    cause: str | None = None,
    started: float | None = None,
    summary: Mapping[str, float] | None = None,
    reports: Columns | None = None,
    operations: OperationMetrics | None = None,
    transfers: Mapping[str, transfer_stats.NixlKVConnectorStats] | None = None,
    steps: StepMetrics | None = None,
    profile: Mapping[str, Any] | None = None,
    elsewhere: str | None = None,
    overlapping_runs: int = 0,
    measured_by: str | None = None,
    of_parent: bool = False,
) -> NodeDocument:
    """Return the document of a node whose job has ended, with its verdict.

    Args:
        node: Facts of the node.
        component: The component that ran.
        status: `FINISHED`, `FAILED` or `KILLED`.
        cause: Why the job ended early; None where it ended by itself.
        started: Unix time of the first report.
        summary: Metric key → value, from the samples.
        reports: The sampled columns.
        operations: The operations of all processes of the job on this node.
        transfers: Name of the connector → its transfers.
        steps: The steps of the loops of all ranks on this node.
        profile: What the stack samplers found, from `model.profile.build_profile`.
        elsewhere: The program that had the job's work started where it is not measured.
        overlapping_runs: How many other runs of this process ran at the same time.
        measured_by: The run of this process whose figures contain these.
        of_parent: Whether the figures are those of the whole parent run.
    """
    document = NodeDocument(
        node=dict(node),
        component=component,
        status=status,
        started=started,
        duration_sec=(summary or {}).get("duration_sec"),
        summary=dict(summary or {}),
        reports=reports or {},
    )
    add_recorded(document, operations or OperationMetrics(), transfers or {}, steps)
    if profile is not None:
        document.extra["profile"] = dict(profile)
    facts = {
        "cause": cause,
        "elsewhere": elsewhere,
        "overlapping_runs": overlapping_runs or None,
        "measured_by": measured_by,
        "of_parent": of_parent or None,
    }
    document.extra |= {name: value for name, value in facts.items() if value is not None}
    judge_document(document)
    return document


def add_recorded(
    document: NodeDocument,
    operations: OperationMetrics,
    transfers: Mapping[str, transfer_stats.NixlKVConnectorStats],
    steps: StepMetrics | None = None,
) -> None:
    """Put operations, transfers and steps, and the metrics made of them, into a document."""
    document.operations = operations.as_dict()
    document.summary.update(operations.summary_metrics())
    document.transfers = transfer_stats.as_dict(transfers)
    for name, stats in transfers.items():
        document.summary.update(transfer_stats.summary_metrics(name, stats))
    if steps is not None:
        document.steps = steps.as_dict()
        document.summary.update(steps.summary_metrics())


def add_left_over(document: NodeDocument, folder: Path | None) -> None:
    """Put into a killed job's document what its journal does not hold, and judge it again.

    A journal without a second sample does not say how long the job lasted: then it was at least
    until the last sample of its stacks. The time of the file would be that of a copy.

    Args:
        document: The node.
        folder: The job's spool folder; None where there is none.
    """
    document.extra["cut_off"] = True
    if (started := document.started) is None:
        return
    stacks = [] if folder is None else collect_stacks(folder)
    if document.duration_sec is None:
        now, seen = time.time(), [cell[0] for raw in stacks for cell in raw.cells]
        known = (at for at in seen if started <= at <= now)
        document.duration_sec = max(known, default=started) - started
    # Reports reach the journal's file within four seconds, and samples of stacks at once.
    duration_sec = document.duration_sec + _LAST_SEC
    profile = build_profile(stacks, started=started, duration_sec=duration_sec)
    if profile is not None:
        document.extra["profile"] = profile
        judge_document(document)


def judge_document(document: NodeDocument) -> None:
    """Put the first of its findings into a document, as bottleneck and advice, and its phases."""
    document.extra["phases"] = [phase.as_dict() for phase in find_phases(document)]
    first = findings_of(document)[0]
    document.extra.update(kind=first.kind, advice=first.sentence)
    if first.bottleneck:
        document.extra["bottleneck"] = first.bottleneck
    if launcher := document.extra.get("elsewhere"):
        # The little that the launcher itself used says nothing of the job.
        advice = f"The work is not measured: {launcher} had it started outside the command."
        document.extra.update(kind="waiting", bottleneck="waiting", advice=advice)


def tag_document(document: NodeDocument) -> dict[str, str]:
    """Return the tags with which a run says what its document says."""
    tags = {"mlflow_perf.status": document.status or "KILLED"}
    for name in _TAGGED:
        if name in document.extra:
            tags[f"mlflow_perf.{name}"] = str(document.extra[name])
    return tags
