"""Which types of spans there are and how they hang together, as data, as DOT and as a picture.

May import errors, spans.analyses, spans.columns, spans.schema. Pictures are drawn by Graphviz.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.analyses.timings import Database
from mlflow_perf.spans.database.event_arrays import Columns, Ints, columns_of
from mlflow_perf.spans.database.schema import reading

__all__ = ["draw_graph", "to_dot", "type_graph"]

_FORMATS = ("dot", "svg", "png", "pdf")
_DRAW_SEC = 60


def type_graph(db: Database) -> dict[str, list[dict[str, Any]]]:
    """Return the span types and the relations between them.

    Returns:
        `types`: rows of `type` and `spans`; `relations`: rows of `from`, `to`, `kind` (`subspan` or
        `facet`) and `count`.
    """
    with reading(db) as connection:
        columns = columns_of(connection)
    kinds, counts = np.unique(columns.span_type, return_counts=True)
    types = [
        {"type": columns.names[int(kind)], "spans": int(count)}
        for kind, count in zip(kinds, counts, strict=True)
    ]
    relations = [
        *_relations(columns, columns.superspan, columns.subspan, "subspan"),
        *_relations(columns, columns.left, columns.right, "facet"),
    ]
    return {"types": types, "relations": relations}


def to_dot(graph: dict[str, list[dict[str, Any]]]) -> str:
    """Return a type graph in Graphviz's language; facets are dashed and have no direction."""
    lines = ["digraph spans {", "  rankdir=TB;", '  node [shape=box, fontname="sans-serif"];']
    lines.append('  edge [fontname="sans-serif", fontsize=10];')
    for row in graph["types"]:
        label = f"{row['type']}\n{row['spans']:,} span{'s'[: row['spans'] != 1]}"
        lines.append(f"  {_quoted(row['type'])} [label={_quoted(label)}];")
    for row in graph["relations"]:
        style = ", style=dashed, dir=both" if row["kind"] == "facet" else ""
        ends = f"{_quoted(row['from'])} -> {_quoted(row['to'])}"
        lines.append(f'  {ends} [label="{row["count"]:,}"{style}];')
    return "\n".join([*lines, "}", ""])


def draw_graph(db: Database, path: str | Path) -> Path:
    """Write the type graph to a file: DOT, or a picture (svg, png, pdf) that Graphviz draws.

    Raises:
        SpansError: The ending is not one of these, or Graphviz is missing or fails.
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


def _relations(columns: Columns, upper: Ints, lower: Ints, kind: str) -> list[dict[str, Any]]:
    pairs = (columns.types_of(upper) << 32) | columns.types_of(lower)
    found, counts = np.unique(pairs, return_counts=True)
    return [
        {
            "from": columns.names[pair >> 32],
            "to": columns.names[pair & 0xFFFFFFFF],
            "kind": kind,
            "count": count,
        }
        for pair, count in zip(found.tolist(), counts.tolist(), strict=True)
    ]


def _quoted(text: str) -> str:
    """Return a text as a DOT string that cannot end early, whatever it holds."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + escaped.replace("\0", "") + '"'
