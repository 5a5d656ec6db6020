"""Our own performance documents (`mlflow-perf/1`): components, nodes, operations, transfers.

The document is read as plain JSON by its contract, so that one of a newer version imports too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlflow_perf.core.foreign_files import read_foreign
from mlflow_perf.core.json_io import read_number, read_numbers
from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.base import MOST_MB
from mlflow_perf.spans.importers.nested import Nested, store_nested

_COMPONENT, _NODE = "mlflow_perf.component", "mlflow_perf.node"
_FAMILY = "mlflow-perf/"
_OURS = ("name", "host")


class PerfDocumentImporter:
    """Imports `node-<n>.json` and whole documents."""

    name = "perf-document"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Return whether it is JSON with our schema."""
        return head.lstrip()[:1] == b"{" and f'"{_FAMILY}'.encode() in head and b'"schema"' in head

    def load(self, source: Path, store: Store) -> None:
        """Import each node as a span, its reports as figures, its operations as spans within it.

        Raises:
            SpansError: It holds no nodes.
            ValueError: It is not JSON.
        """
        document = json.loads(read_foreign(source, most_mb=MOST_MB).decode())
        if not isinstance(document, dict) or not isinstance(document.get("nodes"), dict):
            raise SpansError(f"{source} holds no `nodes`: it is not a performance document.")
        store_nested(store, read_document(document, store))


def read_document(document: dict[str, Any], store: Store) -> list[Nested]:
    """Return the spans of a document; an invalid node is counted as not read."""
    found: list[Nested] = []
    components: dict[str, Nested] = {}
    for index, node in document["nodes"].items():
        started = node.get("started") if isinstance(node, dict) else None
        if read_number(started) is None:
            store.not_read("a node without a start")
            continue
        # The scope is the MLflow run, or else the node's own name and start.
        name, run = node.get("component"), node.get("run_id")
        key = str(run) if run else hashlib.sha256(f"{name}:{started}".encode()).hexdigest()[:16]
        scope = f"mlflow:{key}" if run else f"perf:{key}"
        about = {"name": name, "run_id": run}
        component = components.setdefault(scope, Nested(_COMPONENT, scope, key, about=about))
        span = _read_node(str(index), node, component)
        nodes = [component, span]
        component.start_us = min(n.start_us for n in nodes if n.start_us is not None)
        component.end_us = max((n.end_us for n in nodes if n.end_us is not None), default=None)
        found += [span, *_read_parts(node, span)]
    return [*components.values(), *found]


def _read_node(index: str, node: dict[str, Any], component: Nested) -> Nested:
    facts, summary = _dict(node.get("node")), _dict(node.get("summary"))
    start, seconds = round(node["started"] * 1e6), read_number(node.get("duration_sec"))
    end = None if seconds is None else start + round(seconds * 1e6)
    metrics = []
    reports = _dict(node.get("reports"))
    lists = {name: values for name, values in reports.items() if isinstance(values, list)}
    times = lists.pop("timestamp", [])
    for name, values in lists.items():
        for when, figure in zip(times, values, strict=False):
            time, value = read_number(when), read_number(figure)
            if time is not None and value is not None:
                metrics.append((name, round(time * 1e6), value))
    # Counters are sums: they get their metric's name and the time of the node's end.
    for name, value in read_numbers(_dict(node.get("operations")).get("counters")).items():
        metrics.append((f"ops/{name}/count", start if end is None else end, value))
    return Nested(
        type=_NODE,
        scope=component.scope,
        key=index,
        start_us=start,
        end_us=end,
        parent=(component.scope, component.key),
        about={
            "name": node.get("component"),
            "host": facts.get("hostname"),
            "status": node.get("status"),
            **{key: value for key, value in facts.items() if key not in _OURS},
            **{f"summary.{key}": value for key, value in summary.items()},
        },
        metrics=metrics,
    )


def _read_parts(node: dict[str, Any], parent: Nested) -> Iterator[Nested]:
    """Yield a span for each operation and transfer, with its statistics as attributes."""
    summary = _dict(node.get("summary"))
    for kind in ("operation", "transfer"):
        recorded = _dict(node.get(f"{kind}s"))
        for name, stats in _dict(recorded.get("times", recorded)).items():
            if not isinstance(stats, dict):
                continue
            # Transfers hold distributions here; their figures are in the summary only.
            head = f"{kind}s/{name}/"
            figures = {k.removeprefix(head): v for k, v in summary.items() if k.startswith(head)}
            figures |= stats
            plain = {k: v for k, v in figures.items() if read_number(v) is not None}
            yield Nested(
                type=f"mlflow_perf.{kind}",
                scope=parent.scope,
                key=f"{parent.key}/{kind}/{name}",
                parent=(parent.scope, parent.key),
                about={**plain, "name": name, "host": parent.about["host"]},
            )


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
