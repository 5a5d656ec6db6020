"""Nextflow's traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_perf.histories.reading import read_histories

READABLE = """\
task_id\thash\tnative_id\tname\tstatus\texit\tsubmit\tduration\trealtime\t%cpu\
\tpeak_rss\tpeak_vmem\trchar\twchar
1\t12/abc\t77\tALIGN (a)\tCOMPLETED\t0\t2026-01-02 10:00:00.000\t3m 30s\t3m 20s\t150.0%\
\t1.5 GB\t2 GB\t10 MB\t1 MB
2\t13/abd\t78\tSORT\tFAILED\t1\t2026-01-02 10:00:00.000\t2s\t1s\t-\t-\t-\t-\t-
3\t14/abe\t-\tSORT (late)\tABORTED\t-\t2026-01-02 10:00:00.000\t-\t-\t-\t-\t-\t-\t-
"""

RAW = """\
task_id;hash;process;tag;name;status;exit;cpus;memory;submit;start;realtime;%cpu\
;peak_rss;rchar;read_bytes
1;12/abc;WF:ALIGN;a;b;WF:ALIGN (a;b);COMPLETED;0;4;4294967296;1700000001000;1700000002000;60000\
;200.0;1073741824;5242880;1048576
2;13/abd;WF:ALIGN;c;WF:ALIGN (c);FAILED;137;4;1073741824;1700000001000;1700000002000;30000;200.0\
;1000000000;1048576;0
"""


def test_a_trace_with_units(tmp_path: Path) -> None:
    """The default columns; a task that never started is counted, a missing figure is absent."""
    path = tmp_path / "mine" / "trace.txt"
    path.parent.mkdir()
    path.write_text(READABLE)
    (workflow,) = read_histories([path])
    assert (workflow.source, workflow.name, workflow.left_out) == ("nextflow", "mine", 1)
    align, sort = workflow.tasks
    assert (align.component, align.duration_sec, align.peak_mb) == ("ALIGN", 200.0, 1536.0)
    assert align.cpu_sec == 300.0
    assert align.params == {"read_mb": 10.0}
    # `duration` counts the wait from `submit`, and there is no column `start`.
    assert align.submitted is not None
    assert align.started == align.submitted + 10.0
    assert (sort.status, sort.peak_mb, "job_max_mem_mb" in sort.metrics) == ("FAILED", None, False)


def test_a_kill_for_lack_of_memory_may_be_unknown(tmp_path: Path) -> None:
    """The default columns have no `memory`: 137 alone may be any SIGKILL."""
    path = tmp_path / "trace.txt"
    path.write_text(READABLE.replace("FAILED\t1\t", "FAILED\t137\t"))
    ((align, sort),) = (workflow.tasks for workflow in read_histories([path]))
    assert (align.out_of_memory, sort.out_of_memory) == (False, None)


def test_a_cached_task_is_no_run(tmp_path: Path) -> None:
    """A resumed execution takes its result, and lists its figures of the execution before."""
    path = tmp_path / "trace.txt"
    path.write_text(READABLE.replace("COMPLETED", "CACHED"))
    (workflow,) = read_histories([path])
    assert ([task.component for task in workflow.tasks], workflow.left_out) == (["SORT"], 2)


def test_a_raw_trace_whose_tag_holds_the_separator(tmp_path: Path) -> None:
    """Nextflow does not quote; the tag is in two columns, so the line can be put together again."""
    path = tmp_path / "trace.csv"
    path.write_text(RAW)
    (workflow,) = read_histories([path])
    first, second = workflow.tasks
    assert (workflow.name, first.component, first.name) == ("WF", "WF:ALIGN", "WF:ALIGN (a;b)")
    metrics = first.metrics
    assert metrics["job_max_mem_mb"] == 1024.0
    assert metrics["mem_limit_mb"] == 4096.0
    assert metrics["job_cpu_avg_cores"] == pytest.approx(2.0)
    assert metrics["node_cpu_hours"] == pytest.approx(4 / 60)
    assert metrics["node_unused_cpu_hours"] == pytest.approx(2 / 60)
    assert metrics["job_io_read_mb"] == 1.0
    assert (first.out_of_memory, second.out_of_memory) == (False, True)
    assert first.started == 1_700_000_002.0


@pytest.mark.parametrize(
    ("state", "name", "broken"),
    [
        ("ABORTED", "SORT (late)", {"KILLED"}),  # the execution was interrupted
        ("FAILED", "SORT (late)", {"FAILED"}),  # it could not be submitted
        ("FAILED", "SORT", set()),  # and was, at the next attempt
        ("CACHED", "SORT (late)", set()),
        ("RUNNING", "SORT (late)", set()),
    ],
)
def test_a_task_that_ended_before_it_ran_breaks_the_workflow(
    tmp_path: Path, state: str, name: str, broken: set[str]
) -> None:
    """It has no run time, and so no run of its own."""
    path = tmp_path / "trace.txt"
    path.write_text(READABLE.replace("SORT (late)\tABORTED", f"{name}\t{state}"))
    (workflow,) = read_histories([path])
    assert len(workflow.tasks) == 2
    assert set(workflow.broken) == broken
