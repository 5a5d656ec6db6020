"""The types of spans and the relations between them, as rows, DOT and a picture."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.event_arrays import Row, read_columns
from mlflow_perf.spans.database.schema import Database

_FORMATS = ("dot", "svg", "png", "pdf")
_DRAW_SEC = 60


def types(db: Database) -> list[Row]:
    """Return each span type and how many spans and events it has: `type`, `spans`, `events`."""
    columns = read_columns(db)
    kinds, spans = np.unique(columns.span_type, return_counts=True)
    events = np.bincount(
        np.searchsorted(kinds, columns.type_by_span[columns.event_span]), minlength=len(kinds)
    )
    rows = [
        {"type": columns.names[int(k)], "spans": int(s), "events": int(e)}
        for k, s, e in zip(kinds, spans, events, strict=True)
    ]
    return sorted(rows, key=lambda row: str(row["type"]))


def type_graph(db: Database) -> dict[str, list[Row]]:
    """Return the span types and the relations between them.

    Returns:
        `types`: rows of `type` and `spans`; `relations`: rows of `from`, `to`, `kind` (`subspan` or
        `facet`) and `count`.
    """
    columns = read_columns(db)
    kinds, counts = np.unique(columns.span_type, return_counts=True)
    spans = [
        {"type": columns.names[kind], "spans": count}
        for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True)
    ]
    relations: list[Row] = []
    for kind, upper, lower in (
        ("subspan", columns.superspan, columns.subspan),
        ("facet", columns.left, columns.right),
    ):
        pairs = (columns.type_by_span[upper] << 32) | columns.type_by_span[lower]
        found, numbers = np.unique(pairs, return_counts=True)
        for pair, count in zip(found.tolist(), numbers.tolist(), strict=True):
            start, end = columns.names[pair >> 32], columns.names[pair & 0xFFFFFFFF]
            relations.append({"from": start, "to": end, "kind": kind, "count": count})
    return {"types": spans, "relations": relations}


def to_dot(graph: dict[str, list[Row]]) -> str:
    """Return a type graph in Graphviz's language; facets are dashed and have no direction."""
    lines = ["digraph spans {", "  rankdir=TB;", '  node [shape=box, fontname="sans-serif"];']
    lines.append('  edge [fontname="sans-serif", fontsize=10];')
    for row in graph["types"]:
        label = f"{row['type']}\n{row['spans']:,} span{'s'[: row['spans'] != 1]}"
        lines.append(f"  {_quote(row['type'])} [label={_quote(label)}];")
    for row in graph["relations"]:
        style = ", style=dashed, dir=both" if row["kind"] == "facet" else ""
        ends = f"{_quote(row['from'])} -> {_quote(row['to'])}"
        lines.append(f'  {ends} [label="{row["count"]:,}"{style}];')
    return "\n".join([*lines, "}", ""])


def draw_graph(db: Database, path: str | Path) -> Path:
    """Write the type graph to a file: DOT, or a picture (svg, png, pdf) that Graphviz draws.

    Raises:
        SpansError: The file has another ending, or Graphviz is missing or fails.
    """
    path = Path(path)
    kind = path.suffix.removeprefix(".").lower()
    if kind not in _FORMATS:
        raise SpansError(f"{path} must end in one of: {', '.join(_FORMATS)}.")
    dot = to_dot(type_graph(db))
    if kind == "dot":
        path.write_text(dot, "utf-8")
        return path
    if shutil.which("dot") is None:
        raise SpansError(
            "Pictures of graphs are drawn by Graphviz, which is not installed: install the package "
            "graphviz of your system, or write a .dot file."
        )
    command = ["dot", f"-T{kind}", "-o", str(path.absolute())]
    done = subprocess.run(
        command, input=dot.encode(), capture_output=True, timeout=_DRAW_SEC, check=False
    )
    if done.returncode:
        raise SpansError(f"Graphviz could not draw {path}: {done.stderr.decode().strip()}")
    return path


def _quote(text: str) -> str:
    """Return a text as a DOT string, with whatever would end the string escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + escaped.replace("\0", "") + '"'
