"""The part of the run and the function of a finding."""

from __future__ import annotations

from mlflow_perf.analysis.finding_places import Part, find_function, find_part
from mlflow_perf.analysis.findings import findings_of
from mlflow_perf.analysis.time_shares import read_spans, split_time
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.reports.tables import build_finding_rows


def _node(*cores: float) -> NodeDocument:
    used: list[float | None] = [sum(cores[:i], 0.0) for i in range(len(cores) + 1)]
    return NodeDocument(
        summary={"job_cpu_avg_cores": 0.5, "cpu_limit_cores": 2.0, "duration_sec": len(cores)},
        reports={"elapsed_sec": [float(i) for i in range(len(cores) + 1)], "job_cpu_sec": used},
    )


def test_a_finding_of_one_part_names_it() -> None:
    """Asleep for four seconds, then busy for six: each has its part."""
    spans = read_spans(_node(*[0.0] * 4, *[1.0] * 6))
    shares = [split_time(span) for span in spans]
    assert find_part("serial", spans, shares) == Part((4.0, 10.0), 1.0, "4 s to the end")
    assert find_part("waiting", spans, shares) == Part((0.0, 4.0), 0.0, "the start to 4 s")
    assert find_part("memory_growth", spans, shares) is None


def test_a_finding_of_the_whole_or_of_moments_names_no_part() -> None:
    """Neither the whole run nor every other second of it counts as one part of the run."""
    for cores in ([1.0] * 10, [1.0, 0.0] * 5):
        spans = read_spans(_node(*cores))
        assert find_part("serial", spans, [split_time(span) for span in spans]) is None


def test_a_part_has_most_of_the_time_of_its_finding() -> None:
    """Two seconds of one busy CPU are not most of it beside eight of 0.45 CPUs."""
    spans = read_spans(_node(*[0.45] * 8, *[1.0] * 2))
    assert find_part("serial", spans, [split_time(span) for span in spans]) is None


def test_what_is_beside_a_part_is_of_that_part() -> None:
    """One CPU, both, then a sleep: the mean of the run and its function are not those of 3 to 5 s.

    The children that kept both busy have no profile: `burn` had ended when they began.
    """
    node = _node(*[1.0] * 3, *[2.0] * 2, *[0.0] * 5)
    node.summary["job_cpu_avg_cores"] = 0.7
    functions = [["main thread", "", 0, True], ["burn", "a.py", 1, False]]
    node.extra["profile"] = {
        "own": [{"function": "burn", "main_s": 3.04, "wall_s": 3.04, "cpu_s": 3.04}],
        "flame": {
            "width_s": 1.0, "functions": functions, "parents": [-1, 0], "names": [0, 1],
            "buckets": [[1, 1000, 1000]] * 3 + [[1, 40, 40]] + [[]] * 6,
        },
    }  # fmt: skip
    found = {finding.kind: finding for finding in findings_of(node)}
    assert found["saturated"].evidence == (
        "The CPUs were 35% busy (0.7 of 2 CPUs), mostly from 3 s to 5 s (2 CPUs used)"
    )
    assert (found["saturated"].phase, found["saturated"].function) == ("3 s to 5 s", None)
    assert found["serial"].evidence.endswith(", mostly from the start to 3 s (1 CPU used)")
    assert found["serial"].function == "burn"


def test_the_function_comes_from_the_profile() -> None:
    """Computing names what used the CPU, waiting what the main thread waited in."""
    node = _node(1.0)
    node.extra["profile"] = {
        "own": [
            {"function": "parse", "main_s": 6.0, "wall_s": 6.0, "cpu_s": 5.7},
            {"function": "fetch", "main_s": 4.0, "wall_s": 4.0, "cpu_s": 0.1},
            {"function": "serve", "main_s": 0.0, "wall_s": 60.0, "cpu_s": 0.0},
        ]
    }
    assert find_function("serial", node).function == "parse"
    assert find_function("waiting", node).function == "fetch"
    assert find_function("memory", node).function is None
    assert find_function("serial", _node(1.0)).function is None


def test_the_wait_for_a_cpu_belongs_to_what_computes() -> None:
    """On a full machine the function that sleeps is named, not the one that others held up."""
    node = _node(1.0)
    node.summary["job_run_delay_pct"] = 80.0
    node.extra["profile"] = {
        "own": [
            {"function": "parse", "main_s": 3.4, "wall_s": 3.4, "cpu_s": 0.7},
            {"function": "sleep", "main_s": 1.5, "wall_s": 1.5, "cpu_s": 0.01},
        ]
    }
    assert find_function("waiting", node).function == "sleep"
    assert find_function("contended", node).function == "parse"


def test_few_samples_name_no_function() -> None:
    """Two seconds that may be four more or less are nobody's."""
    node = _node(1.0)
    row = {"function": "parse", "main_s": 2.0, "wall_s": 2.0, "cpu_s": 2.0, "cpu_error_s": 4.0}
    node.extra["profile"] = {"own": [row]}
    assert find_function("serial", node).function is None
    row["cpu_error_s"] = 0.5
    assert find_function("serial", node).function == "parse"


def test_a_part_of_the_run_has_its_own_function() -> None:
    """The tree's buckets show when each function ran; a damaged tree is ignored."""
    functions = [
        ["main thread", "", 0, True],
        ["load", "a.py", 1, False],
        ["fit", "a.py", 9, False],
    ]
    node = _node(1.0)
    node.extra["profile"] = {
        "flame": {
            "width_s": 1.0, "functions": functions, "parents": [-1, 0, 0], "names": [0, 1, 2],
            "buckets": [[1, 1000, 900], [2, 1000, 1000], [2, 1000, 1000]],
        }
    }  # fmt: skip
    assert find_function("serial", node, (0.0, 1.0)).function == "load"
    assert find_function("serial", node, (0.0, 3.0)).function == "fit"
    node.extra["profile"]["flame"]["parents"] = [5, 0, 0]
    assert find_function("serial", node, (0.0, 3.0)).function is None


def test_of_a_shared_function_the_caller_is_named() -> None:
    """In a finding, in its JSON, and in a phase; by the CPU time where the job computed."""
    node = _node(*[1.0] * 6)
    callers = [
        {"function": "load", "main_s": 4.0, "wall_s": 4.0, "cpu_s": 1.0},
        {"function": "parse", "main_s": 2.0, "wall_s": 2.0, "cpu_s": 4.7},
    ]
    row = {"function": "burn", "main_s": 6.0, "wall_s": 6.0, "cpu_s": 5.7, "callers": callers}
    node.extra["profile"] = {"own": [row]}
    assert find_function("serial", node) == ("burn", "parse")
    [first, *_] = findings_of(node)
    assert first.as_dict()["caller"] == "parse"
    assert build_finding_rows([first])[0].where == "burn (called by parse)"
