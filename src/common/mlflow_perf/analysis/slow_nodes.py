"""Finds the nodes of a run that took much longer than the others."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from mlflow_perf.core.format import duration, join_some
from mlflow_perf.model.document import NodeDocument

_FACTOR = 1.25
_LEAST_SEC = 1.0


def find_slow_nodes(durations: Mapping[int, float]) -> list[int]:
    """Return the nodes that took a quarter longer than the median, the slowest first.

    Args:
        durations: Node index → seconds.
    """
    if len(durations) < 2:
        return []
    middle = statistics.median_low(durations.values())
    late = [i for i, took in durations.items() if took > max(_FACTOR * middle, middle + _LEAST_SEC)]
    return sorted(late, key=lambda index: -durations[index])


def read_durations(nodes: Iterable[tuple[int, NodeDocument]]) -> dict[int, float]:
    """Return how long each node took, in seconds, but for those that did not finish.

    Beside a node that was killed after a moment, no other one is slow.

    Args:
        nodes: Indexes and nodes.
    """
    return {
        index: node.duration_sec
        for index, node in nodes
        if node.duration_sec is not None and node.status in (None, "", "FINISHED")
    }


def describe_slow_nodes(durations: Mapping[int, float]) -> tuple[float, str] | None:
    """Return the share of the run in which the others waited, and who is slow, in words.

    Args:
        durations: Node index → seconds.
    """
    late = find_slow_nodes(durations)
    if not late:
        return None
    others = statistics.median(took for index, took in durations.items() if index not in late)
    slowest = durations[late[0]]
    names = join_some(f"node {index} ({duration(durations[index])})" for index in late)
    text = f"{names[0].upper()}{names[1:]} took longer than the others ({duration(others)})"
    return 1.0 - others / slowest, text
