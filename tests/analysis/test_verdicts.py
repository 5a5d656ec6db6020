"""The verdict of a node's summary: the first of its findings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.analysis.findings import BOTTLENECK_OF_KIND, Finding, findings_of
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.model.metrics import METRICS

BOTTLENECKS = {*BOTTLENECK_OF_KIND.values(), "throttled"}
BASE = {"duration_sec": 60.0, "cpu_limit_cores": 4.0, "max_t_mem_percent": 30.0}

CASES: list[tuple[str, dict[str, float], str]] = [
    ("cpu", {"cpu_avg_utilization_pct": 98.0}, "98% busy (3.9 of 4 CPUs)"),
    ("cpu", {"cpu_avg_utilization_pct": 75.0}, "75% busy"),
    ("cpu", {"cpu_avg_utilization_pct": 30.0, "job_cpu_avg_cores": 1.0}, "(1 of 4 CPUs)"),
    ("cpu", {"cpu_avg_utilization_pct": 95.0, "job_cpu_avg_cores": 1.6, "cpu_stall_pct": 60.0},
     "others use this node"),
    ("cpu", {"cpu_avg_utilization_pct": 97.0, "job_cpu_avg_cores": 0.9, "job_max_cpu_cores": 2.0,
             "cpu_stall_pct": 65.0}, "others use this node"),
    ("cpu", {"cpu_avg_utilization_pct": 100.0, "job_cpu_avg_cores": 0.6, "cpu_steal_pct": 65.0},
     "ran others for 65% of the time"),
    ("cpu", {"cpu_avg_utilization_pct": 10.0, "job_cpu_avg_cores": 0.4, "cpu_steal_pct": 10.0},
     "ran others for 50% of the time"),
    ("cpu", {"cpu_avg_utilization_pct": 25.0, "job_cpu_avg_cores": 0.8, "cpu_steal_pct": 5.0},
     "kept one CPU busy (0.8 of 4"),
    # Dask with four threads beside thirty others: its threads wait for those, not for each other.
    ("cpu", {"cpu_avg_utilization_pct": 100.0, "cpu_limit_cores": 2.0, "job_cpu_avg_cores": 0.3,
             "job_max_cpu_cores": 1.2, "job_run_delay_pct": 92.0}, "others use this node"),
    ("cpu", {"cpu_avg_utilization_pct": 20.0, "job_cpu_avg_cores": 0.6, "job_run_delay_pct": 1.0},
     "computed on one CPU at a time (0.6 of 4"),
    ("waiting", {"cpu_avg_utilization_pct": 100.0, "job_cpu_avg_cores": 0.02,
                 "cpu_steal_pct": 65.0},
     "0 of 4 CPUs"),
    ("waiting", {"cpu_avg_utilization_pct": 7.0, "job_cpu_avg_cores": 0.12, "cpu_steal_pct": 3.0},
     "0.1 of 4 CPUs"),
    ("cpu", {"cpu_avg_utilization_pct": 45.0, "job_cpu_avg_cores": 0.68, "cpu_steal_pct": 27.0},
     "ran others for 60% of the time"),
    ("cpu", {"cpu_avg_utilization_pct": 65.0, "gpu_avg_utilization_pct": 12.0},
     "while the GPUs were 12% busy"),
    ("gpu", {"cpu_avg_utilization_pct": 40.0, "gpu_avg_utilization_pct": 92.0}, "GPUs were 92%"),
    ("disk", {"cpu_avg_utilization_pct": 12.0, "io_stall_pct": 71.0,
              "total_disk_io_write_mb": 600.0}, "71% of the time (10 MB/s moved"),
    ("disk", {"cpu_avg_utilization_pct": 99.0, "io_stall_pct": 14.0, "cpu_stall_pct": 97.0,
              "job_cpu_avg_cores": 0.2, "job_io_write_mb": 60.0}, "14% of the time (1 MB/s moved"),
    ("waiting", {"cpu_avg_utilization_pct": 99.0, "io_stall_pct": 80.0, "job_cpu_avg_cores": 0.0,
              "job_io_write_mb": 0.1}, "0 of 4 CPUs"),
    ("disk", {"cpu_avg_utilization_pct": 12.0, "iowait_pct": 20.0}, "waited for disks 80%"),
    ("disk", {"cpu_avg_utilization_pct": 10.0, "total_disk_io_read_mb": 12000.0,
              "iowait_pct": 15.0}, "200 MB/s"),
    ("memory", {"cpu_avg_utilization_pct": 90.0, "oom_kills": 1.0}, "killed 1 process"),
    ("memory", {"cpu_avg_utilization_pct": 90.0, "mem_stall_pct": 33.0}, "33% of the time"),
    ("memory", {"cpu_avg_utilization_pct": 50.0, "job_max_mem_mb": 980.0, "mem_limit_mb": 1000.0},
     "peaked at 98%"),
    ("throttled", {"cpu_avg_utilization_pct": 99.0, "cpu_throttled_pct": 45.0}, "45% of the time"),
    ("network", {"cpu_avg_utilization_pct": 8.0, "total_net_io_ext_recv_mb": 3000.0}, "50 MB/s"),
    ("idle", {"cpu_avg_utilization_pct": 0.4}, "0 of 4 CPUs"),
    ("waiting", {"cpu_avg_utilization_pct": 96.0, "job_cpu_avg_cores": 0.01}, "0 of 4 CPUs"),
    ("balanced", {"cpu_avg_utilization_pct": 50.0}, "(CPUs 50% busy, memory peak"),
    ("balanced", {"cpu_avg_utilization_pct": 84.0, "job_cpu_avg_cores": 2.0},
     "(CPUs 84% busy, 50% with the job, memory peak"),
]  # fmt: skip


def decide_verdict(summary: dict[str, float], node: dict[str, Any] | None = None) -> Finding:
    """Return the verdict of a node of which only the summary and its facts are known."""
    return findings_of(NodeDocument(node=node or {}, summary=summary))[0]


@pytest.mark.parametrize(("bottleneck", "summary", "evidence"), CASES)
def test_each_situation_has_its_verdict(
    bottleneck: str, summary: dict[str, float], evidence: str
) -> None:
    """The verdict names what held the job back, and its sentence holds the figure."""
    found = decide_verdict({**BASE, **summary})
    assert (found.bottleneck, evidence in found.sentence) == (bottleneck, True), found


def test_a_deadly_cause_comes_before_a_slow_one() -> None:
    """An out-of-memory kill is the verdict even where the CPUs were full and throttled."""
    summary = {"oom_kills": 2.0, "cpu_throttled_pct": 90.0, "cpu_avg_utilization_pct": 100.0}
    assert decide_verdict(summary).bottleneck == "memory"


def test_the_nodes_facts_stand_in_for_a_missing_limit() -> None:
    """One of 16 CPUs is serial work, also where only the node's facts say that there are 16."""
    summary = {"cpu_avg_utilization_pct": 6.25}
    assert decide_verdict(summary, {"cpu_count": 16}).bottleneck == "cpu"
    assert "ask for one CPU" in decide_verdict(summary, {"cpu_count": 16}).sentence


def test_without_figures_there_is_no_verdict() -> None:
    """A node that reported nothing is called neither idle nor balanced."""
    found = decide_verdict({})
    assert (found.bottleneck, found.word) == ("", "unknown")
    assert "no CPU figures" in found.sentence


_KEYS = [metric.key for metric in METRICS] + [
    "cpu_stall_pct", "mem_stall_pct", "io_stall_pct", "cpu_throttled_pct", "oom_kills",
    "job_cpu_avg_cores", "job_max_mem_mb", "mem_limit_mb", "gpu_avg_utilization_pct",
]  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(_KEYS), st.floats(allow_nan=True, allow_infinity=True)),
    st.dictionaries(st.just("cpu_count"), st.sampled_from([None, 4, -1, "four", float("nan")])),
)
def test_any_summary_has_a_verdict(summary: dict[str, float], node: dict[str, Any]) -> None:
    """Whatever a summary holds, the verdict is a word of the tag, or none, and one line of text."""
    found = decide_verdict(summary, node)
    assert found.bottleneck in BOTTLENECKS | {""}
    assert found.sentence.endswith(".")
    assert "\n" not in found.sentence
