"""Bound what a page reads of its documents: a file may hold more than any recorder writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from mlflow_perf.core.format import format_count
from mlflow_perf.model.document import NodeDocument

MOST_NODES = 4096
_MOST_FIGURES = 25_000  # 2,000 names of operations with eight figures each, and 50 loops
_MOST_NAMES = 2_500
_MOST_FACTS = 100
_MOST_COLUMNS = 1_000
_MOST_LOOPS = 100


class Bounds:
    """Cuts the documents of one page, and counts what it leaves out.

    The curves keep their length: the page thins them.
    """

    def __init__(self) -> None:
        self._left_out: Counter[str] = Counter()
        self._nodes = 0

    def bound(self, nodes: Iterable[NodeDocument]) -> Iterator[NodeDocument]:
        """Yield nodes without what is beyond the bounds."""
        for node in nodes:
            self._nodes += 1
            if self._nodes > MOST_NODES:
                self._left_out["node"] += 1
                continue
            blocks = {
                name: {
                    part: self._cut(name, figures, _MOST_NAMES)
                    for part, figures in self._cut(name, block, _MOST_NAMES).items()
                }
                for name, block in (("operation", node.operations), ("transfer", node.transfers))
            }
            yield replace(
                node,
                node=self._cut("fact", node.node, _MOST_FACTS),
                summary=self._cut("figure", node.summary, _MOST_FIGURES),
                reports=self._cut("column", node.reports, _MOST_COLUMNS),
                operations=blocks["operation"],
                transfers=blocks["transfer"],
                steps=self._cut("loop", node.steps, _MOST_LOOPS),
            )

    def _cut(self, name: str, items: Any, most: int) -> Any:
        if not isinstance(items, Mapping) or len(items) <= most:
            return items
        self._left_out[name] += len(items) - most
        return dict(islice(items.items(), most))

    def list_left_out(self) -> list[str]:
        """Return one sentence on what was left out; none if nothing was."""
        found = ", ".join(format_count(count, name) for name, count in self._left_out.items())
        return [f"The documents hold more than this page shows: {found} left out."] if found else []
