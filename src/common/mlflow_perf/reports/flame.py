"""The flame graph of a report, and the bands of its phases, as data for the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlflow_perf.analysis.phases import describe_phase, read_phases
from mlflow_perf.core.json_io import read_number
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.model.profile import Profile
from mlflow_perf.model.profile_building import TreeGrower, prune_tree
from mlflow_perf.reports.speedscope import read_profile


class FlameReader:
    """Takes the nodes one by one: their trees become one, and the first one's phases are kept."""

    def __init__(self) -> None:
        self._first: Profile | None = None
        self._grower: TreeGrower | None = None
        self._phases: list[dict[str, Any]] = []
        self._rate_hz: float | None = None
        self._samples = 0.0

    def add(self, node: NodeDocument, started: float) -> None:
        """Keep the data of a node that the page shows.

        Args:
            node: The node.
            started: Unix time at which the page's time axis begins.
        """
        if not self._phases:
            offset = (node.started or started) - started
            self._phases = [
                {
                    "name": phase.name,
                    "start": round(phase.start_s + offset, 2),
                    "end": round(phase.end_s + offset, 2),
                    "text": describe_phase(phase),
                }
                for phase in read_phases(node)
            ]
        tree = read_profile(node)
        if tree is None:
            return
        profile = node.extra["profile"]
        self._samples += read_number(profile.get("samples")) or 0.0
        if self._first is None:
            self._first, self._rate_hz = tree, read_number(profile.get("rate_hz"))
            return
        if self._grower is None:
            length = len(self._first.buckets) * self._first.width_sec
            self._grower = TreeGrower(self._first.width_sec, length)
            self._grower.add_tree(self._first)
        self._grower.add_tree(tree)

    @property
    def phases(self) -> Sequence[dict[str, Any]]:
        """The phases of the first node that has some: more than one, or none."""
        return self._phases if len(self._phases) > 1 else []

    def build(self) -> dict[str, Any] | None:
        """Return the tree of all nodes; None without one."""
        tree = self._first if self._grower is None else prune_tree(self._grower.tree)
        if tree is None:
            return None
        return {
            **tree.as_dict(),
            "rate_hz": self._rate_hz,
            "samples": self._samples,
            "phases": list(self.phases),
        }
