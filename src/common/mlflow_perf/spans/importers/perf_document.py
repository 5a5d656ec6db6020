"""Our own performance documents (`mlflow-perf/1`): components, nodes, operations, transfers.

May import errors, spans.store, spans.importers. The document is read by its contract, so that one
of a newer program imports too.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.nested import Nested, store_nested

__all__ = ["PerfDocumentImporter", "spans_of_document"]

_COMPONENT, _NODE = "mlflow_perf.component", "mlflow_perf.node"
_FAMILY = "mlflow-perf/"
_OURS = ("name", "host")


class PerfDocumentImporter:
    """Imports `node-<n>.json` and whole documents."""

    name = "perf-document"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Say whether it is JSON with our schema."""
        return head.lstrip()[:1] == b"{" and f'"{_FAMILY}'.encode() in head and b'"schema"' in head

    def load(self, source: Path, store: Store) -> None:
        """Import each node as a span, its reports as figures, its operations as spans within.

        Raises:
            SpansError: It is not JSON, or holds no nodes.
        """
        try:
            document = json.loads(source.read_text("utf-8"))
        except ValueError as error:
            raise SpansError(f"{source} is not JSON: {error}.") from error
        if not isinstance(document, dict) or not isinstance(document.get("nodes"), dict):
            raise SpansError(f"{source} holds no `nodes`: it is not a performance document.")
        store_nested(store, spans_of_document(document, store))


def spans_of_document(document: dict[str, Any], store: Store) -> list[Nested]:
    """Return the spans of a document; a node that is not one is counted."""
    found: list[Nested] = []
    components: dict[str, Nested] = {}
    for index, node in document["nodes"].items():
        started = node.get("started") if isinstance(node, dict) else None
        if not isinstance(started, int | float):
            store.not_read("a node without a start")
            continue
        run, scope = _identity(node)
        about = {"name": node.get("component"), "run_id": node.get("run_id")}
        component = components.setdefault(scope, Nested(_COMPONENT, scope, run, about=about))
        span = _node(str(index), node, component)
        _widen(component, span)
        found += [span, *_parts(str(index), node, span)]
    return [*components.values(), *found]


def _identity(node: dict[str, Any]) -> tuple[str, str]:
    """Return the key and the scope of a node's component: its MLflow run, else its own start."""
    run = node.get("run_id")
    if run:
        return str(run), f"mlflow:{run}"
    about = f"{node.get('component')}:{node['started']}"
    run = hashlib.sha256(about.encode()).hexdigest()[:16]
    return run, f"perf:{run}"


def _node(index: str, node: dict[str, Any], component: Nested) -> Nested:
    facts, summary = _dict(node.get("node")), _dict(node.get("summary"))
    start = round(node["started"] * 1e6)
    duration = node.get("duration_sec")
    return Nested(
        type=_NODE,
        scope=component.scope,
        key=index,
        start_us=start,
        end_us=start + round(duration * 1e6) if isinstance(duration, int | float) else None,
        parent=(component.scope, component.key),
        about={
            "name": node.get("component"),
            "host": facts.get("hostname"),
            "status": node.get("status"),
            **{k: v for k, v in facts.items() if k not in _OURS},
            **{f"summary.{k}": v for k, v in summary.items()},
        },
        metrics=[*_figures(node.get("reports")), *_counts(node)],
    )


def _figures(reports: Any) -> Iterator[tuple[str, int, float]]:
    """Yield the figures of the columns, each at the time of its row."""
    columns = _dict(reports)
    times = columns.get("timestamp")
    for name, values in columns.items():
        if name == "timestamp" or not (isinstance(values, list) and isinstance(times, list)):
            continue
        for time, value in zip(times, values, strict=False):
            if isinstance(time, int | float) and _finite(value):
                yield name, round(time * 1e6), float(value)


def _counts(node: dict[str, Any]) -> Iterator[tuple[str, int, float]]:
    """Yield the sums of the counters, under their metrics' names, at the node's end."""
    duration = node.get("duration_sec")
    end = node["started"] + (duration if isinstance(duration, int | float) else 0)
    for name, value in _dict(_dict(node.get("operations")).get("counters")).items():
        if _finite(value):
            yield f"ops/{name}/count", round(end * 1e6), float(value)


def _parts(index: str, node: dict[str, Any], parent: Nested) -> Iterator[Nested]:
    """Yield a span for each operation and transfer, with its statistics as attributes."""
    summary = _dict(node.get("summary"))
    for kind in ("operation", "transfer"):
        recorded = node.get(f"{kind}s")
        if not isinstance(recorded, dict):
            continue
        named = recorded.get("times", recorded)
        for name, stats in named.items() if isinstance(named, dict) else ():
            if not isinstance(stats, dict):
                continue
            # What was transferred stands as distributions there, as figures in the summary only.
            head = f"{kind}s/{name}/"
            figures = {k.removeprefix(head): v for k, v in summary.items() if k.startswith(head)}
            plain = {k: v for k, v in (figures | stats).items() if _finite(v) and k not in _OURS}
            yield Nested(
                type=f"mlflow_perf.{kind}",
                scope=parent.scope,
                key=f"{index}/{kind}/{name}",
                parent=(parent.scope, parent.key),
                about={**plain, "name": name, "host": parent.about["host"]},
            )


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _widen(component: Nested, node: Nested) -> None:
    starts = [t for t in (component.start_us, node.start_us) if t is not None]
    ends = [t for t in (component.end_us, node.end_us) if t is not None]
    component.start_us = min(starts, default=None)
    component.end_us = max(ends, default=None)


def _finite(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # Not `isfinite`, which takes no whole number beyond the floats: a counter may be one.
    return number and abs(value) <= sys.float_info.max
