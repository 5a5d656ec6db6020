"""The right size: never below what was seen, with its evidence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.analysis.findings import findings_of
from mlflow_perf.analysis.resource_lines import (
    azureml_lines,
    kubernetes_lines,
    slurm_lines,
)
from mlflow_perf.analysis.rightsize import right_size
from mlflow_perf.analysis.wanted_cpus import CPU_TOLERANCE
from mlflow_perf.errors import RunNotFoundError, SettingError
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.perf_run import PerfRun

MakeRun = Callable[..., PerfRun]

BIG = {"cpu_limit_cores": 16.0, "mem_limit_mb": 65536.0, "duration_sec": 600.0}
SERIAL = {**BIG, "job_max_cpu_cores": 1.02, "job_cpu_avg_cores": 0.99, "job_max_mem_mb": 1537.0}
BUSY_NODE = {"cpu_avg_utilization_pct": 100.0}


def test_the_peak_on_which_the_best_known_right_sizer_fails(make_run: MakeRun) -> None:
    """A peak of 1,537 MiB is never answered with less: not with 128."""
    size = right_size([make_run(SERIAL)], headroom_pct=20)
    assert size.memory_mb == 1856
    assert size.cpus == 1
    assert any("1,537" in sentence for sentence in size.evidence)


def test_files_in_memory_are_part_of_the_advice(make_run: MakeRun) -> None:
    """A job that held 600 MB in /dev/shm was killed with the memory that its processes needed."""
    held = {"max_t_cgroup_held_mb": 2300.0, "max_t_cgroup_tmpfs_mb": 600.0}
    size = right_size([make_run({**SERIAL, **held})], headroom_pct=0)
    assert size.memory_mb == 2176
    assert any("files in memory" in sentence for sentence in size.evidence)
    # What a process has mapped is its own already: the group held no more.
    mapped = {**held, "max_t_cgroup_held_mb": 1550.0}
    assert right_size([make_run({**SERIAL, **mapped})], headroom_pct=0).memory_mb == 1600


def test_a_mean_of_an_import_is_no_peak(make_run: MakeRun) -> None:
    """An hour on 16 CPUs and one on one: with 9 it takes 2 h 47 min, more than it took."""
    summary = {"cpu_limit_cores": 16.0, "job_cpu_avg_cores": 8.5, "duration_sec": 7200.0}
    run = make_run(metrics=summary, tags={"mlflow_perf.imported_from": "sacct"})
    size = right_size([run])
    assert size.cpus == 9
    assert size.minutes is not None
    assert size.minutes >= 60 * (1 + 16 / 9) * 1.2
    said = " ".join(size.evidence)
    assert "8.50 of 16 CPUs busy on average, its peak is unknown" in said
    assert "it may take up to 1.4 times as long" in said
    assert not size.peak["cpus"]


def test_the_jobs_own_peak_is_told_from_what_mlflow_perf_adds(make_run: MakeRun) -> None:
    """`show` and the metric have the job's own peak; the advice covers what measuring adds."""
    size = right_size([make_run({**SERIAL, "perf_mem_mb": 90.0})], headroom_pct=20)
    assert size.memory_mb == 1984
    assert size.peak["memory_mb"] == 1537.0
    said = "the job peaked at 1,537 of 65,536 MB (run), 1,627 MB with mlflow-perf; 20% head-room"
    assert said in " ".join(size.evidence)


def test_two_nodes_that_fit_on_one_are_told_apart_from_each(make_run: MakeRun) -> None:
    """Their memory is the sum, on the one node that is recommended."""
    node = {**SERIAL, "job_max_mem_mb": 143.0, "job_max_cpu_cores": 0.5, "job_cpu_avg_cores": 0.5}
    size = right_size([make_run(node, node, label="mn")])
    assert size.nodes == 1
    assert "peaked at 286 of 65,536 MB (mn, node 0 together with 1 more)" in " ".join(size.evidence)


def test_without_its_document_a_runs_right_size_is_a_lower_bound(make_run: MakeRun) -> None:
    """The metrics lack what mlflow-perf held; beside an imported task there was none."""
    metrics = {**SERIAL, "run_node_count": 1.0}
    known = make_run({**SERIAL, "perf_mem_mb": 90.0})
    size = right_size([known, make_run(metrics=metrics)])
    assert size.is_lower_bound
    assert "at least this: 1 run without a whole document" in " ".join(size.evidence)
    imported = make_run(metrics=metrics, tags={"mlflow_perf.imported_from": "trace.txt"})
    assert not right_size([known, imported]).is_lower_bound


@pytest.mark.parametrize("status", ["KILLED", "FAILED"])
def test_the_peak_of_a_job_that_did_not_finish_is_a_lower_bound(
    make_run: MakeRun, status: str
) -> None:
    """It says so, and states no chance that the next run fits; one run that finished is enough."""
    cut, whole = replace(make_run(SERIAL), status=status), make_run(SERIAL)
    size = right_size([cut])
    said = " ".join(size.evidence)
    assert f"so not the figures of the whole work: {cut.label} ({status}). Each peak is a" in said
    assert "chance" not in said
    assert size.p_fit is None
    assert "whole work" not in " ".join(right_size([cut, whole]).evidence)
    assert right_size([cut, whole]).p_fit is not None


@pytest.mark.parametrize("headroom_pct", [None, 20.0])
def test_an_unfinished_run_with_the_largest_peak_is_named(
    make_run: MakeRun, headroom_pct: float | None
) -> None:
    """It gets a head-room of its own, and no chance is told: it may have needed still more."""
    cut = make_run({**SERIAL, "job_max_mem_mb": 5000.0}, label="fat")
    size = right_size(
        [make_run(SERIAL, label="whole"), replace(cut, status="FAILED")], headroom_pct=headroom_pct
    )
    said = " ".join(size.evidence)
    assert "with more memory than any that finished: fat (FAILED). Each peak is a lower" in said
    assert "whole (" not in said
    assert "chance" not in said
    assert size.p_fit is None
    assert size.memory_mb is not None
    assert size.memory_mb > 5000.0 * 1.1


def test_one_cpu_is_no_plural(make_run: MakeRun) -> None:
    """The sentence about the CPUs of a node with one CPU says so."""
    alone = make_run({**SERIAL, "cpu_limit_cores": 1.0})
    assert "1.02 of 1 CPU busy" in " ".join(right_size([alone]).evidence)


def test_a_one_core_job_on_sixteen_needs_one(make_run: MakeRun) -> None:
    """One busy thread reads as 1.02 cores, as the kernel counts in ticks: one CPU is enough."""
    size = right_size([make_run(SERIAL)])
    assert (size.cpus, size.nodes, size.gpus) == (1, 1, 0)


@pytest.mark.parametrize(
    ("average", "peak", "cpus"), [(0.97, 1.15, 1), (0.97, 1.25, 2), (1.1, 1.15, 2), (0.3, 1.15, 2)]
)
def test_helper_threads_of_a_serial_job_need_no_cpu(
    make_run: MakeRun, average: float, peak: float, cpus: int
) -> None:
    """A job that keeps one CPU busy needs one CPU, even if its peak is slightly higher."""
    summary = {**SERIAL, "job_cpu_avg_cores": average, "job_max_cpu_cores": peak}
    size = right_size([make_run(summary)])
    assert size.cpus == cpus
    assert ("serial" in " ".join(size.evidence)) == (cpus == 1)


def test_the_worst_run_of_a_history_counts(make_run: MakeRun) -> None:
    """Each figure comes from the run that needed most of it."""
    runs = [
        make_run({**SERIAL, "job_max_mem_mb": 900.0}, label="small"),
        make_run({**SERIAL, "job_max_mem_mb": 5000.0}, label="fat"),
        make_run({**SERIAL, "job_max_cpu_cores": 7.4}, label="wide"),
        make_run(label="empty"),
    ]
    size = right_size(runs, headroom_pct=20)
    assert (size.cpus, size.memory_mb) == (8, 6016)
    text = " ".join(size.evidence)
    assert "From 3 runs" in text
    assert "1 without figures" in text
    assert "fat" in text
    assert "wide" in text


def test_an_out_of_memory_kill_asks_for_more_than_there_was(make_run: MakeRun) -> None:
    """If the kernel killed a process for lack of memory, the true peak is unknown."""
    summary = {**SERIAL, "mem_limit_mb": 2048.0, "job_max_mem_mb": 2040.0, "oom_kills": 1.0}
    assert right_size([make_run(summary)], headroom_pct=20).memory_mb == 3072
    size = right_size([make_run(summary)])
    assert size.memory_mb == 4096
    text = " ".join(size.evidence)
    assert "killed" in text
    assert "0 runs" not in text  # nothing is learned from a run whose peak is unknown


@pytest.mark.parametrize(("headroom_pct", "asked_mb"), [(None, 16384), (20.0, 12288)])
def test_a_kill_alone_says_that_its_memory_is_too_little(
    make_run: MakeRun, headroom_pct: float | None, asked_mb: int
) -> None:
    """Slurm may know that a job was killed for want of memory, and not how much it used."""
    killed = {
        "cpu_limit_cores": 4.0,
        "mem_limit_mb": 8192.0,
        "duration_sec": 50.0,
        "oom_kills": 1.0,
    }
    imported = {"mlflow_perf.imported_from": "sacct"}
    runs = [make_run(metrics=killed, tags=imported, status="FAILED", label="big")]
    size = right_size(runs, headroom_pct=headroom_pct)
    assert size.memory_mb == asked_mb
    assert size.is_lower_bound
    said = " ".join(size.evidence)
    assert "Memory: no run says how much was used. Memory: the kernel killed processes" in said
    assert f"(big): the true peak is unknown, so {asked_mb / 8192:.2g} times the 8,192 MB" in said
    assert "head-room" not in said
    # Without the memory that it had, nothing is known.
    unknown = make_run(metrics={**killed, "mem_limit_mb": 0.0}, tags=imported)
    assert right_size([unknown], headroom_pct=headroom_pct).memory_mb is None


def test_a_kill_is_told_with_the_memory_that_the_killed_run_had(make_run: MakeRun) -> None:
    """A later run had more, so that "what there was" would be read as that run's memory."""
    killed = {**SERIAL, "mem_limit_mb": 4096.0, "job_max_mem_mb": 4000.0, "oom_kills": 1.0}
    less = {**killed, "mem_limit_mb": 2048.0, "job_max_mem_mb": 2000.0}
    enough = {**SERIAL, "mem_limit_mb": 8192.0, "job_max_mem_mb": 5000.0}
    runs = [make_run(less, label="less"), make_run(killed, label="first"), make_run(enough)]
    text = " ".join(right_size(runs).evidence)
    assert "for want of it (first): the true peak is unknown" in text
    assert re.search(r"[\d.]+ times the 4,096 MB with which they were killed is advised", text)


def test_a_guess_far_beyond_all_runs_has_no_chance(make_run: MakeRun) -> None:
    """Neither the figures nor the sentence say how probably it fits; a near input has a chance."""
    runs = [
        make_run({**SERIAL, "job_max_mem_mb": 100.0 + 10 * i}, params={"rows": str(i)})
        for i in range(1, 31)
    ]
    far, near = (right_size(runs, inputs={"rows": rows}) for rows in (1e6, 15.0))
    assert far.as_dict()["p_fit"] is None
    assert "chance" not in " ".join(far.evidence)
    assert "cut to 50 times the largest peak" in " ".join(far.evidence)
    assert near.p_fit is not None


def test_no_chance_is_told_as_certain(make_run: MakeRun) -> None:
    """A chance of 99.6% is not rounded to 100%."""
    size = right_size([make_run(SERIAL)] * 100)
    assert size.p_fit is not None
    assert 0.995 < size.p_fit < 1
    assert "the next one fits with a chance of over 99% (" in " ".join(size.evidence)


def test_a_throttled_job_gets_more_than_its_quota(make_run: MakeRun) -> None:
    """A quota of one CPU that held the job back half of the time is not enough."""
    summary = {
        **SERIAL,
        "cpu_limit_cores": 1.0,
        "job_max_cpu_cores": 1.0,
        "cpu_throttled_pct": 50.0,
    }
    assert right_size([make_run(summary)]).cpus == 2


@pytest.mark.parametrize(
    ("figures", "cpus", "said"),
    [
        ({"job_affinity_cpus": 1.0}, 1, "its own affinity (taskset, numactl, sched_setaffinity)"),
        ({"job_quota_cores": 1.0}, 1, "its own control group's quota allowed it 1 of 2 CPUs"),
        ({}, 2, "beside idle ones; unless its own affinity or quota holds them, it could use 2.00"),
        ({"cpu_avg_utilization_pct": 100.0}, 2, "CPUs that others had; it could use 2.00"),
    ],
)
def test_cpus_that_a_jobs_own_limits_keep_from_it_are_not_those_of_others(
    figures: dict[str, float], cpus: int, said: str, make_run: MakeRun
) -> None:
    """More CPUs help a pinned job only when the pin is lifted."""
    summary = {
        "cpu_limit_cores": 2.0, "job_cpu_avg_cores": 1.0, "job_max_cpu_cores": 1.0,
        "job_run_delay_pct": 50.0, "cpu_avg_utilization_pct": 50.0, "duration_sec": 60.0, **figures,
    }  # fmt: skip
    advice = right_size([make_run(summary)])
    assert advice.cpus == cpus
    assert said in " ".join(advice.evidence)
    assert "serial" not in " ".join(advice.evidence)


@pytest.mark.parametrize(
    ("cores", "used", "delay_pct", "said"),
    [
        (1.0, 0.54, 94.0, "it had more threads to run than CPUs: with more it may be faster."),
        (1.0, 1.0, 87.5, "it had more threads to run than CPUs: with more it may be faster."),
        (4.0, 3.0, 80.0, "it had more threads to run than CPUs: with more it may be faster."),
        (1.0, 1.0, 40.0, "it had more threads to run than CPUs: with more it may be faster."),
        (4.0, 0.5, 80.0, "its threads waited for CPUs that others had; it could use 2.50."),
        (1.0, 0.54, 46.0, "its work is serial, one CPU is what it can use."),
        (1.0, 1.0, 0.1, "its work is serial, one CPU is what it can use."),
        (1.0, 1.0, 20.0, "its work is serial, one CPU is what it can use."),
    ],
)
def test_the_advice_and_the_findings_agree_on_whether_more_cpus_help(
    cores: float, used: float, delay_pct: float, said: str, make_run: MakeRun
) -> None:
    """Parallel processes that got one CPU were told that they are serial, or that others had it."""
    summary = {
        "cpu_limit_cores": cores, "job_cpu_avg_cores": used, "job_max_cpu_cores": used,
        "job_run_delay_pct": delay_pct, "cpu_avg_utilization_pct": 100.0, "duration_sec": 60.0,
        "job_processes_avg": 8.0, "job_threads_max": 8.0, "job_ran_apart_pct": 86.0,
    }  # fmt: skip
    evidence = " ".join(right_size([make_run(summary)]).evidence)
    assert f"CPU: {said}" in evidence
    findings = findings_of(NodeDocument(summary=summary))
    if "serial" in said:
        assert "may help" not in evidence
        assert "may be faster" not in evidence
        told = " ".join(finding.do for finding in findings)
        assert "ask for more CPUs" not in told
        assert "more cores may" not in told
    else:
        assert "serial" not in evidence
        kind = "contended" if "others had" in said else "oversubscribed"
        assert kind in [finding.kind for finding in findings]
        assert "more cores cannot" not in " ".join(finding.do for finding in findings)


def test_without_the_jobs_own_figures_the_nodes_stand_in_and_it_is_said(make_run: MakeRun) -> None:
    """Figures of the node include other jobs, and the evidence says so."""
    summary = {
        "cpu_avg_utilization_pct": 30.0,
        "max_t_cpu_pct_per_cpu_avg": 60.0,
        "max_t_mem_percent": 50.0,
    }
    run = make_run(summary, facts={"cpu_count": 4, "mem_total_mb": 8000})
    size = right_size([run], headroom_pct=20)
    assert (size.cpus, size.memory_mb) == (3, 4800)
    assert sum("everything on the node" in sentence for sentence in size.evidence) == 2


@pytest.mark.parametrize("in_pipeline", [False, True])
def test_the_whole_nodes_memory_counts_for_no_run_beside_one_whose_own_is_known(
    make_run: MakeRun, in_pipeline: bool
) -> None:
    """A step of `echo hi` asked for the 4,000 MB that its machine held."""
    facts = {"cpu_count": 4, "mem_total_mb": 8000}
    short = make_run({"max_t_mem_percent": 50.0}, facts=facts)
    known = make_run({"job_max_mem_mb": 300.0, "max_t_mem_percent": 50.0}, facts=facts)
    mixed = right_size([short, known], headroom_pct=0, in_pipeline=in_pipeline)
    assert 300 < (mixed.memory_mb or 0) < 500
    alone = right_size([short], headroom_pct=0, in_pipeline=in_pipeline)
    assert alone.memory_mb == (None if in_pipeline else 4032)


def test_there_is_no_advice_on_unknown_figures(make_run: MakeRun) -> None:
    """Without a source there is no number, and a sentence says why."""
    size = right_size([make_run({"duration_sec": 3.0})])
    assert (size.cpus, size.memory_mb) == (None, None)
    assert "no advice on CPUs" in " ".join(size.evidence)
    assert "no advice on memory" in " ".join(size.evidence)


def test_nodes_that_were_hardly_used_are_fewer(make_run: MakeRun) -> None:
    """Four nodes that used two cores each fit on one of 16, which then needs what all had."""
    node = {**SERIAL, "job_max_cpu_cores": 2.0, "job_max_mem_mb": 1000.0}
    size = right_size([make_run(node, node, node, node)], headroom_pct=20)
    assert (size.nodes, size.cpus) == (1, 8)
    assert size.memory_mb == 4800


def test_fewer_cpus_than_are_advised_slow_nothing_down(make_run: MakeRun) -> None:
    """Each rank of an imported job keeps its CPU."""
    summary = {"cpu_limit_cores": 2.0, "job_cpu_avg_cores": 0.9, "duration_sec": 60.0}
    tags = {"mlflow_perf.imported_from": "sacct", "mlflow_perf.tasks_per_node": "2"}
    size = right_size([make_run(metrics=summary, tags=tags)])
    assert size.cpus == 2
    assert "times as long" not in " ".join(size.evidence)


def test_the_work_of_one_node_stays_together(make_run: MakeRun) -> None:
    """Three nodes' work on two nodes: one of them holds two whole works, not one and a half."""
    node = {**SERIAL, "job_max_cpu_cores": 6.5, "job_max_mem_mb": 20_000.0}
    size = right_size([make_run(node, node, node)])
    assert (size.nodes, size.cpus) == (2, 13)
    assert size.memory_mb is not None
    assert size.memory_mb >= 40_000
    # Three times 10 of 16 cores are less than two nodes have, but no two of them fit on one.
    wide = {**node, "job_max_cpu_cores": 10.0}
    assert right_size([make_run(wide, wide, wide)]).nodes == 3


def test_ranks_move_with_their_nodes(make_run: MakeRun) -> None:
    """The lines to paste start as many ranks as the job had, on however many nodes."""
    node = {**SERIAL, "job_max_cpu_cores": 2.0, "job_max_mem_mb": 1000.0}
    size = right_size([make_run(node, node, node, node, facts={"world_size": 8})])
    assert (size.nodes, size.tasks_per_node) == (1, 8)
    assert "--ntasks-per-node=8\n#SBATCH --cpus-per-task=1" in slurm_lines(size)


def test_each_rank_gets_a_cpu(make_run: MakeRun) -> None:
    """Slurm gives no task less: the lines must not ask for more than the advice, or than a node."""
    node = {**SERIAL, "job_max_cpu_cores": 2.0, "job_max_mem_mb": 1000.0}
    size = right_size([make_run(node, node, node, node, facts={"world_size": 16})])
    assert (size.nodes, size.tasks_per_node, size.cpus) == (1, 16, 16)
    assert "CPU: one for each of the 16 ranks on a node." in size.evidence
    size = right_size([make_run(node, node, node, node, facts={"world_size": 32})])
    assert (size.nodes, size.tasks_per_node, size.cpus) == (2, 16, 16)


def test_nodes_that_waited_for_their_disks_stay(make_run: MakeRun) -> None:
    """More nodes may have been taken for their bandwidth."""
    node = {**SERIAL, "io_stall_pct": 40.0}
    assert right_size([make_run(node, node)]).nodes == 2


def test_nodes_without_the_jobs_own_figures_stay(make_run: MakeRun) -> None:
    """The usage of the whole node does not say where else the job would fit."""
    node = {"cpu_limit_cores": 16.0, "cpu_avg_utilization_pct": 5.0}
    assert right_size([make_run(node, node)]).nodes == 2


def test_gpus_that_did_nothing_are_left_out(make_run: MakeRun) -> None:
    """Only the GPUs that computed are asked for."""
    gpus = {"gpu0_avg_utilization_pct": 71.0, "gpu1_avg_utilization_pct": 0.0}
    size = right_size([make_run({**SERIAL, **gpus, "gpu_avg_utilization_pct": 35.5})])
    assert size.gpus == 1
    assert "GPU: 1 of 2" in " ".join(size.evidence)
    assert "nvidia.com/gpu: 1" in kubernetes_lines(size)
    assert "--gpus-per-node=1" in slurm_lines(size)


def test_the_gpu_has_the_memory_that_the_job_used(make_run: MakeRun) -> None:
    """20 GB of an H200 are no job for a T4 of 16 GB."""
    gpu = {"gpu0_avg_utilization_pct": 35.5, "gpu_avg_utilization_pct": 35.5}
    size = right_size([make_run({**SERIAL, **gpu, "max_t_gpu_mem_mb": 20700.0})])
    assert size.gpu_memory_mb == 22770
    assert size.peak["gpu_memory_mb"] == 20700.0
    assert size.as_dict()["gpu_memory_mb"] == 22770
    assert "A100" in azureml_lines(size)
    assert sum("20,700 MB" in sentence for sentence in size.evidence) == 1
    older = right_size([make_run({**SERIAL, **gpu})])
    assert older.gpu_memory_mb is None
    assert "T4" in azureml_lines(older)


def test_without_a_run_there_is_nothing_to_advise() -> None:
    """A fleet's component may have none that holds figures: durations that are no number."""
    with pytest.raises(RunNotFoundError, match="There is no run with figures"):
        right_size([])


def test_no_run_with_figures_is_an_error(make_run: MakeRun) -> None:
    """Without figures there is no advice; a negative head-room is an error."""
    with pytest.raises(RunNotFoundError, match="no figures of its nodes"):
        right_size([make_run()])
    with pytest.raises(SettingError, match="head-room"):
        right_size([make_run(SERIAL)], headroom_pct=-1)


def test_one_run_is_little_evidence_and_gets_more_room(make_run: MakeRun) -> None:
    """Head-room shrinks as runs agree: the first run gets most of it, and it is said."""
    sizes = [
        right_size([make_run(SERIAL, label=f"r{i}", started=float(i)) for i in range(runs)])
        for runs in (1, 3, 10)
    ]
    memory = [size.memory_mb or 0 for size in sizes]
    assert memory[0] > memory[1] >= memory[2] > 1537
    assert memory[0] >= 1.4 * 1537
    assert [size.runs for size in sizes] == [1, 3, 10]
    assert "little evidence" in sizes[0].method
    assert "little evidence" in " ".join(sizes[0].evidence)
    assert sizes[0].p_fit is not None


def test_a_job_that_did_not_get_its_cpus_is_not_advised_to_take_fewer(make_run: MakeRun) -> None:
    """Twelve runnable threads that got one of 16 CPUs could use twelve."""
    starved = {**SERIAL, "job_cpu_avg_cores": 1.0, "job_run_delay_pct": 91.7, **BUSY_NODE}
    size = right_size([make_run(starved)])
    assert size.cpus is not None
    assert size.cpus >= 12
    assert "waited for CPUs" in " ".join(size.evidence)


def test_no_others_are_blamed_beside_idle_cpus(make_run: MakeRun) -> None:
    """What held the job is then its own: an affinity or a quota that nothing told."""
    starved = {**SERIAL, "job_cpu_avg_cores": 1.0, "job_run_delay_pct": 91.7}
    said = " ".join(right_size([make_run(starved)]).evidence)
    assert "waited for a CPU beside idle ones; unless its own affinity or quota holds" in said
    assert "others had" not in said


@pytest.mark.parametrize(("delay_pct", "has_waited"), [(1.3, False), (50.0, True)])
def test_waiting_for_cpus_is_a_reason_only_where_there_was_some(
    make_run: MakeRun, delay_pct: float, *, has_waited: bool
) -> None:
    """A job that computes and sleeps in turns keeps less than one CPU busy, and waits for none."""
    summary = {**SERIAL, "job_cpu_avg_cores": 0.6, "job_max_cpu_cores": 0.6}
    size = right_size([make_run({**summary, "job_run_delay_pct": delay_pct, **BUSY_NODE})])
    assert ("waited for CPUs" in " ".join(size.evidence)) is has_waited


@given(
    cores=st.floats(0.01, 500),
    memory=st.floats(1, 4e6),
    limit=st.integers(1, 512),
    nodes=st.integers(1, 4),
    headroom=st.floats(0, 200),
    throttled=st.floats(0, 100),
)
def test_nothing_is_ever_below_the_observed_peak(
    cores: float, memory: float, limit: int, nodes: int, headroom: float, throttled: float
) -> None:
    """All nodes together get at least what all nodes together used, each at least its own peak."""
    summary = {
        "job_max_cpu_cores": cores,
        "job_max_mem_mb": memory,
        "cpu_limit_cores": float(limit),
        "mem_limit_mb": 4e6,
        "cpu_throttled_pct": throttled,
    }
    every = {i: NodeDocument({"index": i}, summary=dict(summary)) for i in range(nodes)}
    size = right_size([PerfRun("r", document=PerfDocument(every))], headroom_pct=headroom)
    assert size.cpus is not None
    assert size.memory_mb is not None
    assert size.cpus >= cores - CPU_TOLERANCE
    assert size.memory_mb >= memory
    assert size.nodes * size.cpus >= nodes * cores - size.nodes * CPU_TOLERANCE - 1e-6
    assert size.nodes * size.memory_mb >= nodes * memory - 1e-6
    json.dumps(size.as_dict(), allow_nan=False)


def test_time_has_room() -> None:
    """The time limit is the longest run plus head-room, in steps of five minutes."""
    document = PerfDocument({0: NodeDocument(summary={**SERIAL, "duration_sec": 3000.0})})
    assert right_size([PerfRun("r", document=document)]).minutes == 60
