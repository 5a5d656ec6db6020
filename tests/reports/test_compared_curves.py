"""The curves of compared runs over each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from mlflow_perf.model.document import NodeDocument
from mlflow_perf.reports.compared_curves import build_compared_curves, find_anchors


def node(length: int, *names: str) -> NodeDocument:
    """Return a node of so many seconds whose phases are equally long."""
    each = length / len(names)
    phases = [{"name": name, "start_s": i * each, "end_s": (i + 1) * each}
              for i, name in enumerate(names)]  # fmt: skip
    times: list[float | None] = [float(second) for second in range(length + 1)]
    return NodeDocument(
        started=1000.0 * length,
        duration_sec=float(length),
        reports={
            "elapsed_sec": times,
            "job_cpu_cores": [1.0 + i / length for i in range(length + 1)],
        },
        extra={"phases": phases},
    )


def test_runs_begin_together_whenever_they_ran() -> None:
    """A curve per run on one axis from 0, named by the run; the longest node counts."""
    runs: Sequence[list[NodeDocument]] = [[node(10, "a", "b")], [node(4, "a"), node(40, "a", "b")]]
    (found,) = build_compared_curves(["one", "two"], {"train": runs})
    assert found["names"] == ["1 one", "2 two"]
    assert found["x"][0] < 1
    assert 39 < found["x"][-1] < 40
    first, second = found["values"]["job_cpu_cores"]
    known = [place for place, value in enumerate(first) if value is not None]
    assert found["x"][known[-1]] < 10.5
    assert second[-1] is not None


def test_a_run_without_curves_or_without_the_step_is_left_out() -> None:
    """The others are drawn; without any there is nothing."""
    (found,) = build_compared_curves(["a", "b", "c"], {"train": [[], [node(5, "x")], []]})
    assert found["names"] == ["2 b"]
    assert build_compared_curves(["a"], {"train": [[]]}) == []


def test_equal_phases_are_aligned_with_the_baselines() -> None:
    """Edges of phases of equal names are anchors; what is between them is stretched."""
    base = [("load", 0.0, 2.0), ("fit", 2.0, 8.0), ("save", 8.0, 10.0)]
    other = [("load", 0.0, 1.0), ("check", 1.0, 2.0), ("fit", 2.0, 30.0), ("save", 30.0, 40.0)]
    anchors = find_anchors(base, 10.0, other, 40.0)
    assert anchors == [(0.0, 0.0), (1.0, 2.0), (30.0, 8.0), (40.0, 10.0)]
    assert find_anchors(base, 10.0, [], 5.0) == [(0.0, 0.0), (5.0, 10.0)]


def test_anchors_never_run_backwards() -> None:
    """Each moment of a run has one place on the baseline's time."""
    base, other = [("a", 0.0, 5.0), ("b", 5.0, 5.0)], [("a", 0.0, 3.0), ("b", 3.0, 2.0)]
    found = find_anchors(base, 5.0, other, 6.0)
    assert all(x < y and a < b for (x, a), (y, b) in pairwise(found))
