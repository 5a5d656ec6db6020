"""Whose the processes on a GPU are, and the job's own part of the GPU's figures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.readers.gpu.stand_ins import GIB, FakeNvml, record_processes, summarise_job

from mlflow_perf.model.metrics import find_metric
from mlflow_perf.readers.gpu.gpu import Gpu, GpuReader
from mlflow_perf.readers.gpu.gpu_processes import GpuProcesses
from mlflow_perf.readers.gpu.nvidia import open_nvidia

OWN, CHILD, STRANGER, SERVER = 10, 11, 90, 91
NAMES = {OWN: "python", CHILD: "python", STRANGER: "python", SERVER: "nvidia-cuda-mps-server"}


@pytest.fixture
def processes(tmp_path: Path) -> GpuProcesses:
    """Return the judge of a procfs in which two processes are the job's."""
    return GpuProcesses({OWN, CHILD}.__contains__, proc=record_processes(tmp_path, NAMES))


@pytest.fixture
def nvml() -> FakeNvml:
    """Return a library whose first GPU computes for the job and for a stranger."""
    nvml = FakeNvml()
    nvml.busy["GPU-aaaa"] = 100
    nvml.users["GPU-aaaa"] = {OWN: GIB // 4, STRANGER: GIB // 2}
    nvml.computing["GPU-aaaa"] = [(OWN, 5_000_000, 9), (STRANGER, 5_000_000, 81)]
    return nvml


def open_gpu(nvml: FakeNvml, processes: GpuProcesses | None) -> Gpu:
    """Return the first GPU."""
    (gpu,) = open_nvidia(nvml, {"CUDA_VISIBLE_DEVICES": "0"}, processes=processes)
    return gpu


def test_the_jobs_part_is_its_own_and_the_rest_is_others(
    nvml: FakeNvml, processes: GpuProcesses
) -> None:
    """Work is divided as the driver's counts of processes, memory as they hold it."""
    state = open_gpu(nvml, processes).state()
    assert state.busy_pct == pytest.approx(10.0)
    assert state.others_busy_pct == pytest.approx(90.0)
    # What the driver holds for itself is no other process's.
    assert (state.used_bytes, state.others_bytes) == (GIB / 2, GIB / 2)
    assert open_gpu(nvml, None).state().busy_pct == 100.0


def test_the_metrics_of_the_job_and_of_others(nvml: FakeNvml, processes: GpuProcesses) -> None:
    """Utilisation, memory and unused hours are of the job; those of others have names of their own.

    The GPU's energy is that of all its work.
    """
    opened = [open_gpu(nvml, processes)]
    metrics = summarise_job(GpuReader(lambda: opened))
    assert metrics["gpu_avg_utilization_pct"] == pytest.approx(10.0)
    assert metrics["gpu0_avg_utilization_pct"] == pytest.approx(10.0)
    assert metrics["gpu_others_avg_utilization_pct"] == pytest.approx(90.0)
    assert metrics["max_t_gpu_mem_percent"] == metrics["max_t_gpu_others_mem_percent"] == 12.5
    assert metrics["max_t_gpu_mem_mb"] == 512.0
    assert metrics["node_unused_gpu_hours"] == pytest.approx(0.9)
    assert not [key for key in metrics if find_metric(key) is None]


def test_others_are_absent_where_one_gpu_does_not_tell(
    nvml: FakeNvml, processes: GpuProcesses
) -> None:
    """Of two GPUs one names no processes: how much others did on both is unknown, not 0."""
    reader = GpuReader(
        lambda: open_nvidia(nvml, {"CUDA_VISIBLE_DEVICES": "0,1"}, processes=processes)
    )
    metrics = summarise_job(reader)
    assert metrics["gpu0_avg_utilization_pct"] == pytest.approx(10.0)
    assert metrics["gpu1_avg_utilization_pct"] == 40.0
    assert not [key for key in metrics if "others" in key]


def test_an_idle_gpu_is_idle_for_all(nvml: FakeNvml, processes: GpuProcesses) -> None:
    """Where nobody computed at all, both parts are known to be 0."""
    nvml.busy["GPU-aaaa"], nvml.computing["GPU-aaaa"] = 0, []
    state = open_gpu(nvml, processes).state()
    assert (state.busy_pct, state.others_busy_pct) == (0.0, 0.0)


def test_only_new_samples_count(nvml: FakeNvml, processes: GpuProcesses) -> None:
    """Each question is of the time since the one before; what cannot be is left out."""
    gpu = open_gpu(nvml, processes)
    gpu.state()
    # The first sample is an old one; the others' figure is above 100%.
    nvml.computing["GPU-aaaa"] = [
        (STRANGER, 5_000_000, 80), (STRANGER, 6_000_000, 4_000), (CHILD, 6_000_000, 50),
        (STRANGER, 6_000_000, 50),
    ]  # fmt: skip
    assert gpu.state().busy_pct == pytest.approx(50.0)
    # Nobody has computed since: what the GPU still shows is of the moment before.
    assert gpu.state().busy_pct == pytest.approx(50.0)


def test_an_ended_process_is_whose_it_was(
    nvml: FakeNvml, processes: GpuProcesses, tmp_path: Path
) -> None:
    """The driver counts the work of a process that has ended since."""
    gpu = open_gpu(nvml, processes)
    gpu.state()
    shutil.rmtree(tmp_path / str(STRANGER))
    nvml.computing["GPU-aaaa"] = [(OWN, 6_000_000, 20), (STRANGER, 6_000_000, 60)]
    assert gpu.state().others_busy_pct == pytest.approx(75.0)


def test_a_process_that_draws_and_computes_counts_once(
    nvml: FakeNvml, processes: GpuProcesses
) -> None:
    """It is in two lists of the driver, with the same memory."""
    nvml.drawing["GPU-aaaa"] = {STRANGER: GIB // 2}
    assert open_gpu(nvml, processes).state().others_bytes == GIB / 2
    nvml.users["GPU-aaaa"] = {OWN: GIB // 4}
    assert open_gpu(nvml, processes).state().others_bytes == GIB / 2


def test_without_a_name_for_each_process_nothing_is_divided(
    nvml: FakeNvml, processes: GpuProcesses
) -> None:
    """A PID that procfs does not know, work or memory that the driver does not tell: the whole."""
    nvml.computing["GPU-aaaa"] = [(OWN, 5_000_000, 9), (12345, 5_000_000, 81)]
    state = open_gpu(nvml, processes).state()
    assert (state.busy_pct, state.others_busy_pct) == (100.0, None)
    assert state.others_bytes == GIB / 2
    nvml.users["GPU-aaaa"] = {STRANGER: None}
    del nvml.computing["GPU-aaaa"]
    state = open_gpu(nvml, processes).state()
    assert (state.busy_pct, state.others_busy_pct) == (100.0, None)
    assert (state.used_bytes, state.others_bytes) == (GIB, None)


def test_a_server_that_computes_for_others_is_not_divided(
    nvml: FakeNvml, processes: GpuProcesses
) -> None:
    """Under MPS, one process does the work of many jobs."""
    nvml.users["GPU-aaaa"] = {OWN: GIB // 4, SERVER: GIB // 8}
    state = open_gpu(nvml, processes).state()
    assert (state.busy_pct, state.others_busy_pct) == (100.0, None)
    assert (state.used_bytes, state.others_bytes) == (GIB, None)


@pytest.mark.parametrize("namespace", ["pid:[4026532281]", None])
def test_pids_of_another_namespace_are_not_the_drivers(
    nvml: FakeNvml, tmp_path: Path, namespace: str | None
) -> None:
    """In a container, others' processes are missing or have the host's PIDs: nothing is divided."""
    record_processes(tmp_path, NAMES, namespace=namespace or "?")
    if namespace is None:
        (tmp_path / "self" / "ns" / "pid").unlink()
    state = open_gpu(nvml, GpuProcesses({OWN}.__contains__, proc=tmp_path)).state()
    assert (state.busy_pct, state.others_busy_pct, state.others_bytes) == (100.0, None, None)


def test_where_nobody_reads_the_jobs_processes_nothing_is_divided(
    nvml: FakeNvml, tmp_path: Path
) -> None:
    """Without a reader of the job's tree, no process is known to be another's."""
    judge = GpuProcesses(lambda _: None, proc=record_processes(tmp_path, NAMES))
    assert open_gpu(nvml, judge).state().others_busy_pct is None
