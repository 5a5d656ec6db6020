"""Findings: ranked by the time at stake, with the job's own figures."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlflow_perf.analysis.findings import BOTTLENECK_OF_KIND, KINDS, findings_of
from mlflow_perf.model.document import NodeDocument, PerfDocument

BASE = {
    "duration_sec": 60.0,
    "cpu_limit_cores": 2.0,
    "cpu_avg_utilization_pct": 50.0,
    "job_cpu_avg_cores": 1.0,
    "job_max_cpu_cores": 1.0,
}


def _node(**figures: float) -> NodeDocument:
    return NodeDocument(node={"cpu_count": 2}, summary={**BASE, **figures})


def test_the_first_finding_has_most_time_at_stake() -> None:
    """Half serial, 30% asleep, 20% parallel: serial, then waiting; all with shares and a do."""
    found = findings_of(_node(job_cpu_avg_cores=0.7))
    assert [finding.kind for finding in found] == ["serial", "waiting"]
    assert found[0].share == pytest.approx(0.7)
    assert found[0].do.startswith("run it in parallel")
    assert found[0].severity in ("high", "medium")


def test_a_figure_near_a_bound_lowers_the_confidence_and_not_more() -> None:
    """Around every figure of a starved job, the verdict changes at most once, unsurely."""
    before = None
    changes = 0
    for percent in range(99):
        first = findings_of(
            _node(job_cpu_avg_cores=1 - percent / 100, job_run_delay_pct=float(percent))
        )[0]
        if before is not None and first.kind != before.kind:
            changes += 1
            assert first.confidence < 0.55
            assert before.confidence < 0.55
        before = first
    assert changes == 1


def test_a_sentence_rounds_the_share_of_its_finding() -> None:
    """87.496% is 87.5% in tables with a digit: 88% both there and in the sentence."""
    waiting = findings_of(_node(job_cpu_avg_cores=0.12504))[0]
    assert waiting.share == pytest.approx(0.875)
    assert waiting.evidence.startswith(f"For {100 * waiting.share:.0f}% of the time")


def test_below_a_second_there_is_no_verdict() -> None:
    """33 ms are too short, whatever the disks of the node did."""
    found = findings_of(_node(duration_sec=0.033, io_stall_pct=90.0))
    assert [finding.kind for finding in found] == ["too_short"]
    assert found[0].bottleneck == "balanced"


def test_a_document_of_several_nodes_names_the_nodes() -> None:
    """One finding for each kind; it names its nodes unless it is of all."""
    busy, asleep = _node(), _node(job_cpu_avg_cores=0.0)
    found = findings_of(PerfDocument({0: busy, 1: asleep, 2: asleep}))
    assert [finding.kind for finding in found] == ["waiting", "serial"]
    assert "(nodes 1, 2)" in found[0].evidence
    assert found[0].share == pytest.approx(2 / 3, abs=1e-3)


def test_the_sentence_of_several_nodes_says_whose_figures_it_has() -> None:
    """98% on one node and 60% on the other are 79% of the time: the sentence is of the first."""
    most, less = _node(job_cpu_avg_cores=0.02), _node(job_cpu_avg_cores=0.4)
    waiting = findings_of(PerfDocument({0: less, 1: most}))[0]
    assert waiting.share == pytest.approx(0.79, abs=1e-3)
    assert waiting.evidence.startswith("For 98% of the time")
    assert waiting.evidence.endswith(" (figures of node 1)")
    alike = findings_of(PerfDocument({0: most, 1: most}))[0]
    assert "node" not in alike.evidence


def test_the_network_of_the_node_is_not_the_jobs() -> None:
    """A job without CPU time beside a busy network waits; one that computes a little may load."""
    asleep = _node(job_cpu_avg_cores=0.003, total_net_io_ext_recv_mb=2400.0)
    assert findings_of(asleep)[0].kind == "waiting"
    loads = findings_of(_node(job_cpu_avg_cores=0.2, total_net_io_ext_recv_mb=2400.0))[0]
    assert (loads.kind, "The node's network" in loads.evidence) == ("network", True)


def test_more_threads_than_cpus_are_oversubscribed_also_beside_others() -> None:
    """Twelve runnable threads on two CPUs, of which others take one: never `ask for one CPU`."""
    found = findings_of(
        _node(job_cpu_avg_cores=1.0, job_run_delay_pct=91.7, cpu_avg_utilization_pct=100.0)
    )[0]
    assert found.kind == "oversubscribed"
    assert "12 threads" in found.evidence
    assert "one CPU" not in found.do


def test_others_who_keep_the_gpu_busy_are_the_verdict() -> None:
    """9% for the job and 90% for others: it lacks a GPU of its own, not a faster one."""
    shared = {"gpu_avg_utilization_pct": 9.0, "gpu_others_avg_utilization_pct": 90.0}
    found = findings_of(_node(job_cpu_avg_cores=0.3, **shared))
    assert (found[0].kind, found[0].bottleneck) == ("contended", "gpu")
    assert found[0].evidence == "The GPUs were 9% busy with the job and 90% with others"
    assert found[0].do == "others use them, ask for a GPU of its own"
    assert "idle" not in [finding.kind for finding in found]
    # Both CPUs busy: they hold it back, whatever others do on the GPU.
    both = findings_of(_node(job_cpu_avg_cores=2.0, cpu_avg_utilization_pct=100.0, **shared))
    assert both[0].kind == "saturated"
    assert "GPUs were 9% busy with the job and 90% with others" in both[0].evidence


def test_a_job_that_leaves_the_gpu_to_others_does_not_wait_for_it() -> None:
    """Without work of its own on the GPU, the job needs none."""
    found = findings_of(
        _node(
            job_cpu_avg_cores=0.3, gpu_avg_utilization_pct=0.0, gpu_others_avg_utilization_pct=90.0
        )
    )
    assert {finding.kind for finding in found} == {"waiting", "idle", "serial"}
    idle = next(finding for finding in found if finding.kind == "idle")
    assert idle.sentence == (
        "The GPUs were 0% busy with the job and 90% with others: feed them faster, or ask for none."
    )
    held = findings_of(_node(gpu_avg_utilization_pct=1.0, max_t_gpu_mem_mb=1400.0))
    idle = next(finding for finding in held if finding.kind == "idle")
    assert idle.do == "feed them faster, or compute on CPUs alone"


def test_cpus_and_gpus_may_both_be_contended() -> None:
    """Nodes whose CPUs others use and nodes whose GPU others use are named apart."""
    cpus = _node(job_cpu_avg_cores=0.5, job_run_delay_pct=50.0, cpu_avg_utilization_pct=100.0)
    gpu = _node(gpu_avg_utilization_pct=9.0, gpu_others_avg_utilization_pct=90.0)
    found = findings_of(PerfDocument({0: cpus, 1: gpu}))
    contended = {f.bottleneck: f.evidence for f in found if f.kind == "contended"}
    assert contended["cpu"].endswith("(node 0)")
    assert contended["gpu"].endswith("90% with others (node 1)")


def test_every_kind_has_a_word_for_the_tag() -> None:
    """The tag keeps its eight words plus `waiting` and `input`."""
    assert set(BOTTLENECK_OF_KIND) == set(KINDS)
    assert set(BOTTLENECK_OF_KIND.values()) | {"throttled"} == {
        "cpu", "memory", "disk", "network", "gpu", "throttled", "idle", "balanced", "waiting",
        "input",
    }  # fmt: skip


_FLOATS = st.none() | st.floats(allow_nan=False, allow_infinity=False)
_COLUMNS = (
    "elapsed_sec", "job_cpu_sec", "cpu_busy_sec", "cpu_limit_cores", "io_stall_sec", "job_mem_mb",
    "job_run_delay_sec", "job_ran_sec", "job_read_calls", "job_threads", "gpu_utilization_pct",
    "gpu_others_utilization_pct",
)  # fmt: skip


@given(
    st.integers(0, 8).flatmap(
        lambda length: st.dictionaries(
            st.sampled_from(_COLUMNS), st.lists(_FLOATS, min_size=length, max_size=length)
        )
    ),
    st.dictionaries(st.sampled_from([*BASE, "oom_kills", "job_run_delay_pct"]), _FLOATS),
)
@example(
    {"job_cpu_sec": [None, 0.0], "elapsed_sec": [-1.7976931348623155e308, 2.9937604643020797e292]},
    {"job_cpu_avg_cores": 0.0},
)
def test_any_document_has_findings(
    reports: dict[str, list[float | None]], summary: dict[str, float | None]
) -> None:
    """Whatever a damaged document holds, there is a verdict, and shares are between 0 and 1."""
    known = {key: value for key, value in summary.items() if value is not None}
    found = findings_of(NodeDocument(summary=known, reports=reports))
    assert found
    for finding in found:
        assert finding.kind in KINDS
        assert 0 <= finding.share <= 1
        assert 0 <= finding.confidence <= 1
        assert "\n" not in finding.sentence
        json.dumps(finding.as_dict(), allow_nan=False)


def test_a_long_job_costs_no_more_than_a_short_one() -> None:
    """The end of a job of a month waits no longer: its reports become at most a hundred spans."""
    count = 1000
    reports: dict[str, list[float | None]] = {
        column: [float(i) for i in range(count)] for column in _COLUMNS
    }
    node = NodeDocument(summary={**BASE}, reports=reports)
    begin = time.process_time()
    findings_of(node)
    assert time.process_time() - begin < 0.5
