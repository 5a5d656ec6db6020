"""The flame graph's data: one tree for all nodes, and the phases on the page's time axis."""

from __future__ import annotations

import pytest

from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.model.profile import Profile
from mlflow_perf.reports.flame import FlameReader
from mlflow_perf.reports.html import render

_HOSTILE = "</script><img onerror=alert(1)>"


def make_node(index: int = 0, *, name: str = "fit", started: float = 1000.0) -> NodeDocument:
    """Return a node with a tree of two functions and two phases."""
    functions = [["main thread", "", 0, True], ["load", "a.py", 1, False], [name, "a.py", 9, False]]
    flame = {
        "width_s": 1.0, "functions": functions, "parents": [-1, 0, 0], "names": [0, 1, 2],
        "buckets": [[1, 1000, 900], [2, 1000, 1000]],
    }  # fmt: skip
    phases = [
        {"name": "load", "start_s": 0.0, "end_s": 1.0, "kind": "waiting"},
        {"name": name, "start_s": 1.0, "end_s": 2.0, "kind": "serial"},
    ]
    return NodeDocument(
        node={"index": index},
        component="train",
        started=started,
        duration_sec=2.0,
        reports={"elapsed_sec": [0.0, 1.0, 2.0], "job_cpu_cores": [0.0, 0.1, 1.0]},
        extra={"profile": {"rate_hz": 100, "samples": 9, "flame": flame}, "phases": phases},
    )


def test_the_nodes_trees_become_one() -> None:
    """The same function of two nodes is one box with the time of both."""
    reader = FlameReader()
    for index in range(3):
        reader.add(make_node(index), 1000.0)
    tree = Profile.from_dict(reader.build())
    assert tree is not None
    assert sorted(wall for wall, _ in tree.sum_nodes().values()) == pytest.approx([3.0, 3.0])
    assert [row["function"] for row in tree.list_own(0.0, 1.0)] == ["load"]


def test_phases_stand_on_the_time_axis_of_the_page() -> None:
    """Phases are in seconds since the first node's start; a single phase is not drawn as a band."""
    reader = FlameReader()
    reader.add(make_node(started=1005.0), 1000.0)
    assert [(phase["start"], phase["end"]) for phase in reader.phases] == [(5.0, 6.0), (6.0, 7.0)]
    one = make_node()
    del one.extra["phases"][1]
    single = FlameReader()
    single.add(one, 1000.0)
    assert list(single.phases) == []


def test_a_report_without_or_with_a_damaged_profile_has_no_flame_graph() -> None:
    """The rest of the page is as before."""
    node = make_node()
    node.extra["profile"]["flame"]["names"] = [7, 7, 7]
    assert FlameReader().build() is None
    assert 'id="flame"' not in render(PerfDocument({0: node}))


def test_the_page_shows_graph_and_bands_and_no_name_acts() -> None:
    """A hostile function stays text in the page's data."""
    page = render(PerfDocument({0: make_node(name=_HOSTILE)}))
    assert 'id="flame"' in page
    assert '"phases":[{' in page
    assert _HOSTILE not in page
