"""The shares of the job and of others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.reports.job_share import CpuShare, add_cpu_shares, read_cpu_share


def test_the_job_comes_first_and_the_rest_is_named() -> None:
    """Of two CPUs that were 75% busy, a job that used 0.9 left 0.6 to others and 0.5 idle."""
    summary = {"cpu_limit_cores": 2.0, "job_cpu_avg_cores": 0.9, "cpu_avg_utilization_pct": 75.0}
    share = read_cpu_share(summary)
    assert str(share) == "your job 0.9 of 2 CPUs, others 0.6, idle 0.5"


def test_the_rest_of_a_larger_node_is_the_nodes() -> None:
    """Of a node with more CPUs than the job's, others' and idle CPUs are as the document says."""
    summary = {"cpu_limit_cores": 2.0, "job_cpu_avg_cores": 0.9, "cpu_avg_utilization_pct": 75.0,
               "others_cpu_avg_cores": 4.1, "idle_cpu_avg_cores": 11.0}  # fmt: skip
    assert str(read_cpu_share(summary)) == "your job 0.9 of 2 CPUs, others 4.1, idle 11"


def test_a_missing_source_leaves_its_part_out() -> None:
    """A document of an older version, or of another system, shows what it knows."""
    assert str(read_cpu_share({})) == ""
    assert str(read_cpu_share({"job_cpu_avg_cores": 0.5})) == "your job 0.5 CPUs"
    old = {"node_cpu_hours": 1.0, "duration_sec": 1800.0, "cpu_avg_utilization_pct": 25.0}
    assert read_cpu_share(old) == CpuShare(limit=2.0, idle=1.5)


@given(st.floats(0.1, 512), st.floats(0, 600), st.floats(0, 100))
def test_no_part_is_negative(limit: float, job: float, busy_pct: float) -> None:
    """Whatever the clocks disagree on, no part is below 0 and the parts fill the limit."""
    keys = ("cpu_limit_cores", "job_cpu_avg_cores", "cpu_avg_utilization_pct")
    share = read_cpu_share(dict(zip(keys, (limit, job, busy_pct), strict=True)))
    assert share.others is not None
    assert share.idle is not None
    assert min(share.others, share.idle) >= 0
    assert share.others + share.idle + job == pytest.approx(max(limit, job))


def test_nodes_add_up() -> None:
    """The shares of several nodes are summed; a part that one node lacks is unknown."""
    one = CpuShare(2.0, 1.0, 0.5, 0.5)
    assert add_cpu_shares([one, one]) == CpuShare(4.0, 2.0, 1.0, 1.0)
    assert add_cpu_shares([one, CpuShare(2.0)]) == CpuShare(4.0)
    assert add_cpu_shares([]) == CpuShare()
