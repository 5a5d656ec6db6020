"""Slurm's accounting."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_perf.errors import SettingError
from mlflow_perf.histories.reading import read_histories

TEXT = """\
JobID|JobName|State|ExitCode|Elapsed|AllocCPUS|NNodes|NTasks|ReqMem|MaxRSS|TotalCPU|Submit|Start
7|train|COMPLETED|0:0|01:00:00|8|2||8G||10:00:00|2026-01-02T10:00:00|2026-01-02T10:01:00
7.batch|batch|COMPLETED|0:0|01:00:00|4|1|1||2000K|00:01.5|2026-01-02T10:00:00|2026-01-02T10:01:00
7.0|python|COMPLETED|0:0|01:00:00|8|2|4||1.5G|10:00:00|2026-01-02T10:00:00|2026-01-02T10:01:00
8|train|OUT_OF_MEMORY|0:125|00:00:10|1|1||500Mc||00:05.000|2026-01-02T10:00:00|2026-01-02T10:01:00
8.batch|batch|OUT_OF_MEMORY|0:125|00:00:10|1|1|1||490M|00:05.000|2026-01-02T10:00:00|2026-01-02T10:01:00
9|train|RUNNING|0:0|00:00:10|1|1||500M||00:00:00|2026-01-02T10:00:00|2026-01-02T10:01:00
11|train|FAILED|0:125|00:00:00|1|1||100M||00:00.164|2026-01-02T10:00:00|2026-01-02T10:01:00
11.0|python|OUT_OF_MEMORY|0:125|00:00:00|1|1|1||0|00:00.152|2026-01-02T10:00:00|2026-01-02T10:01:00
10|train|CANCELLED by 0|0:0|00:00:00|0|1||500M||00:00:00|2026-01-02T10:00:00|Unknown
"""


def test_a_job_has_the_peak_of_its_steps(tmp_path: Path) -> None:
    """MaxRSS is that of one task; a job that was killed at once counts, without a peak."""
    path = tmp_path / "cluster.txt"
    path.write_text(TEXT)
    (workflow,) = read_histories([path])
    assert (workflow.name, workflow.left_out, len(workflow.tasks)) == ("cluster", 2, 3)
    done, killed, at_once = workflow.tasks
    assert (done.component, done.status, done.nodes) == ("train", "FINISHED", 2)
    assert (done.peak_mb, done.memory_limit_mb) == (3072.0 + 2000 / 1024, None)
    assert done.metrics["job_cpu_avg_cores"] == 5.0
    assert (killed.status, killed.out_of_memory, killed.memory_limit_mb) == ("FAILED", True, 500.0)
    assert (at_once.out_of_memory, at_once.peak_mb, at_once.duration_sec) == (True, None, 0.0)


@pytest.mark.parametrize(
    ("asked", "allocated", "nodes", "limit_mb"),
    [
        ("300M", "billing=2,cpu=2,mem=600M,node=2", 2, 300.0),  # of the one node asked for
        ("2000M", "cpu=4,mem=2000M,node=2", 2, 1000.0),
        ("8G", "cpu=4,mem=7.5G,node=1", 1, 7680.0),
        ("8G", "", 1, 8192.0),
        ("8G", "", 2, None),  # of one node, or of both
        ("8Gn", "", 2, 8192.0),
        ("500Mc", "", 2, 1000.0),
        ("", "gres/gpumem=3", 1, None),
    ],
)
def test_a_node_had_its_share_of_what_was_allocated(
    tmp_path: Path, asked: str, allocated: str, nodes: int, limit_mb: float | None
) -> None:
    """What was asked for is not what each node had, if Slurm chose their number."""
    path = tmp_path / "jobs.txt"
    path.write_text(
        "JobID|JobName|State|ElapsedRaw|AllocCPUS|NNodes|ReqMem|AllocTRES|Start\n"
        f"1|a|COMPLETED|9|4|{nodes}|{asked}|{allocated}|2026-11-24T02:23:00\n"
    )
    ((task,),) = (workflow.tasks for workflow in read_histories([path]))
    assert task.memory_limit_mb == limit_mb


def _peak(path: Path, *steps: str) -> float | None:
    """Return the peak of a job with these steps: elapsed seconds, MaxRSS, start second, nodes."""
    lines = ["JobID|JobName|State|ElapsedRaw|NNodes|NTasks|MaxRSS|Start|NodeList"]
    lines.append("1|a|COMPLETED|9|1|||2026-11-24T02:23:00|n1")
    for number, step in enumerate(steps):
        took, peak, second, nodes = step.split("|")
        start = f"2026-11-24T02:23:{second}" if second else ""
        lines.append(f"1.{number}|a|COMPLETED|{took}|1|1|{peak}|{start}|{nodes}")
    path.write_text("\n".join(lines) + "\n")
    ((task,),) = (workflow.tasks for workflow in read_histories([path]))
    return task.peak_mb


def test_steps_that_ran_at_the_same_time_on_a_node_are_added(tmp_path: Path) -> None:
    """Two `srun … &` of 600 MB need 1200 MB; one after the other, or elsewhere, they do not."""
    path = tmp_path / "jobs.txt"
    assert _peak(path, "9|600M|21|n1", "9|600M|21|n1", "9|7M|21|n1") == 1207.0
    assert _peak(path, "4|600M|21|n1", "5|500M|25|n1") == 600.0
    assert _peak(path, "5|600M|21|n1", "5|500M|25|n1", "3|100M|27|n1") == 1100.0
    assert _peak(path, "9|600M|21|n1", "9|500M|21|n2") == 600.0
    assert _peak(path, "9|600M|21|r[08-11]", "9|500M|21|r[2-3],r09") == 1100.0
    assert _peak(path, "9|600M|21|", "9|500M|21|") == 1100.0


def test_steps_whose_order_is_unknown_are_not_added(tmp_path: Path) -> None:
    """A loop starts many short steps within a second; some files have no times."""
    path = tmp_path / "jobs.txt"
    assert _peak(path, *["0|600M|21|n1"] * 3) == 600.0
    assert _peak(path, "9|600M||n1", "9|500M||n1") == 600.0
    assert _peak(path) is None


def test_a_job_has_its_user_and_waits_since_it_was_submitted(tmp_path: Path) -> None:
    """The user of MLflow's run is the job's, not who imports it."""
    path = tmp_path / "jobs.txt"
    row = "1|a|COMPLETED|01:00:00|ann|2026-11-20T10:00:00|2026-11-20T10:00:05"
    path.write_text(f"JobID|JobName|State|Elapsed|User|Submit|Start\n{row}\n")
    ((task,),) = (workflow.tasks for workflow in read_histories([path]))
    assert task.tags["mlflow.user"] == "ann"
    assert task.started is not None
    assert task.submitted == task.started - 5.0


ATTEMPTS = """\
Cluster|JobID|JobName|User|State|ElapsedRaw|NNodes|NTasks|MaxRSS|Submit|Start
tiny|7|align|ann|NODE_FAIL|50|1|||2026-11-20T09:50:00|2026-11-20T10:00:00
tiny|7.batch|batch||NODE_FAIL|50|1|1|100M|2026-11-20T10:00:00|2026-11-20T10:00:00
big|7|sort|bob|FAILED|1800|1|||2026-11-20T09:50:00|2026-11-20T10:00:00
big|7.batch|batch||FAILED|1800|1|1|500M|2026-11-20T10:00:00|2026-11-20T10:00:00
tiny|7|align|ann|REQUEUED|700|1|||2026-11-20T09:50:00|2026-11-20T10:05:00
tiny|7.batch|batch||CANCELLED|700|1|1|1200M|2026-11-20T10:05:00|2026-11-20T10:05:00
tiny|7|align|ann|COMPLETED|10|1|||2026-11-20T09:50:00|2026-11-20T11:05:00
tiny|7.batch|batch||COMPLETED|10|1|1|90M|2026-11-20T11:05:00|2026-11-20T11:05:00
"""


def test_jobs_of_two_clusters_and_attempts_of_one_are_told_apart(tmp_path: Path) -> None:
    """`sacct --duplicates` has all attempts of a job that was queued again, with one number."""
    path = tmp_path / "jobs.txt"
    path.write_text(ATTEMPTS + "".join(ATTEMPTS.splitlines(keepends=True)[1:]))
    ((*tasks,),) = (workflow.tasks for workflow in read_histories([path]))
    facts = [
        (task.component, task.tags["mlflow.user"], task.status, task.duration_sec, task.peak_mb)
        for task in tasks
    ]
    assert facts == [
        ("align", "ann", "FAILED", 50.0, 100.0),
        ("sort", "bob", "FAILED", 1800.0, 500.0),
        ("align", "ann", "KILLED", 700.0, 1200.0),
        ("align", "ann", "FINISHED", 10.0, 90.0),
    ]
    assert len({task.key for task in tasks}) == 4
    assert [task.tags["mlflow_perf.cluster"] for task in tasks] == ["tiny", "big", "tiny", "tiny"]


def test_attempts_without_times_are_told_apart(tmp_path: Path) -> None:
    """The least columns that are asked for: a line that stands there twice is one job."""
    path = tmp_path / "jobs.txt"
    lost, done = "7|a|NODE_FAIL|00:00:50\n", "7|a|COMPLETED|00:11:40\n"
    path.write_text(f"JobID|JobName|State|Elapsed\n{lost}{done}{lost}")
    ((*tasks,),) = (workflow.tasks for workflow in read_histories([path]))
    assert [(task.status, task.duration_sec) for task in tasks] == [
        ("FAILED", 50.0),
        ("FINISHED", 700.0),
    ]
    assert len({task.key for task in tasks}) == 2


def test_the_disk_traffic_of_all_steps_is_the_jobs(tmp_path: Path) -> None:
    """Sacct has that of the largest task of each step."""
    path = tmp_path / "jobs.txt"
    path.write_text(
        "JobID|JobName|State|Elapsed|NNodes|NTasks|MaxDiskRead|MaxDiskWrite\n"
        "7|a|COMPLETED|01:00:00|2|||\n"
        "7.0|x|COMPLETED|00:10:00|1|1|100M|\n"
        "7.1|x|COMPLETED|00:10:00|2|8|50M|\n"
    )
    ((task,),) = (workflow.tasks for workflow in read_histories([path]))
    assert (task.disk_read_mb, task.disk_write_mb) == (250.0, None)  # on each of two nodes


@pytest.mark.parametrize(("used", "kept"), [("00:20:00", 1200.0), ("10:00:00", None)])
def test_a_cpu_time_that_cannot_be_is_left_out_and_named(
    tmp_path: Path, used: str, kept: float | None
) -> None:
    """A job may use all threads of its cores, or more CPUs than it asked for, but not 30 times."""
    path = tmp_path / "jobs.txt"
    row = f"1|a|COMPLETED|600|2|{used}"
    path.write_text(f"JobID|JobName|State|ElapsedRaw|AllocCPUS|TotalCPU\n{row}\n")
    (workflow,) = read_histories([path])
    assert [task.cpu_sec for task in workflow.tasks] == [kept]
    said = f"{path}, line 2: TotalCPU is '10:00:00', more than 2 CPUs can use in 600 s"
    assert workflow.doubts == (() if kept else (said,))


def test_the_closing_separator_of_parsable_is_no_column(tmp_path: Path) -> None:
    """`sacct --parsable` ends each line with a separator."""
    path = tmp_path / "jobs.txt"
    path.write_text("".join(f"{line}|\n" for line in TEXT.splitlines()))
    (workflow,) = read_histories([path])
    assert len(workflow.tasks) == 3


def test_a_job_name_may_hold_the_separator(tmp_path: Path) -> None:
    """It is not quoted; a line that is odd elsewhere is refused with its reason."""
    path = tmp_path / "jobs.txt"
    path.write_text(TEXT.replace("|train|", "|map|reduce|"))
    (workflow,) = read_histories([path])
    assert {task.component for task in workflow.tasks} == {"map|reduce"}
    path.write_text(TEXT.replace("7|train|COMPLETED|", "7|train|odd|8|"))
    with pytest.raises(SettingError, match=r"line 2: 14 cells below 13 headings; a text may hold"):
        read_histories([path])


@pytest.mark.parametrize(
    ("allocated", "gpus", "hours"),
    [
        ("billing=8,cpu=8,gres/gpu=4,mem=32G,node=2", 4, 2.0),
        ("cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=32G", 4, 2.0),
        ("cpu=8,gres/gpu:a100=2,gres/gpu:h100=1", 3, 1.5),
        ("cpu=8,gres/gpumem=4,gres/gpuutil=9,mem=32G", 0, 0.0),
        ("", None, None),
    ],
)
def test_a_job_held_the_gpus_that_were_allocated(
    tmp_path: Path, allocated: str, gpus: int | None, hours: float | None
) -> None:
    """The hours are those of one of its two nodes; without the column nobody knows."""
    path = tmp_path / "jobs.txt"
    path.write_text(
        "JobID|JobName|State|ElapsedRaw|AllocCPUS|NNodes|AllocTRES|Start\n"
        f"1|a|COMPLETED|3600|8|2|{allocated}|2026-11-24T02:23:00\n"
    )
    ((task,),) = (workflow.tasks for workflow in read_histories([path]))
    assert task.gpus == gpus
    assert task.metrics.get("node_gpu_hours") == hours
