"""The report's recommendation for the next run: had, used, advised, and lines to paste."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from mlflow_perf.analysis.resource_lines import LINES
from mlflow_perf.analysis.rightsize import right_size
from mlflow_perf.core.format import one_decimal, quantity
from mlflow_perf.errors import MlflowPerfError
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.perf_run import PerfRun

_NAMES = {
    "cpus": "CPUs per node", "memory_mb": "Memory per node", "nodes": "Nodes", "gpus": "GPUs",
    "gpu_memory_mb": "Memory per GPU",
}  # fmt: skip


@dataclass(frozen=True)
class AskedView:
    """A run's right size as texts.

    Attributes:
        rows: Name of the resource; the run's resources, their peaks, and the recommended request.
        lines: Title, identifier and lines of each system.
        evidence: The reasons.
    """

    rows: list[tuple[str, str, str, str]]
    lines: list[tuple[str, str, str]]
    evidence: list[str]


def build_asked_view(nodes: Mapping[int, NodeDocument], run: PerfRun | None) -> AskedView | None:
    """Return the recommended request of a run; None without figures to advise from.

    Args:
        nodes: The run's nodes, without curves.
        run: What MLflow knows of the run.
    """
    document = PerfDocument(dict(nodes))
    made = PerfRun.from_document("this run", document)
    if run is not None:
        made = PerfRun(
            "this run", status=made.status or run.status, tags=run.tags, params=run.params,
            document=document, started=made.started,
        )  # fmt: skip
    try:
        size = right_size([made])
    except MlflowPerfError:
        return None
    rows = []
    for key, name in _NAMES.items():
        if advised := getattr(size, key):
            values = (size.had.get(key), size.peak.get(key), float(advised))
            say = partial(quantity, unit="MB") if key.endswith("memory_mb") else one_decimal
            shown = [say(value) if value else "–" for value in values]
            rows.append((name, shown[0], shown[1], shown[2]))
    lines = [(title, f"lines-{name}", make(size)) for name, (title, make) in LINES.items()]
    return AskedView(rows, lines, list(size.evidence))
