"""NVIDIA's GPUs through a recorded stand-in of the library."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.readers.gpu.stand_ins import FakeNvml, summarise_job

from mlflow_perf.readers.gpu.gpu import (
    GpuReader,
    list_visible_devices,
)
from mlflow_perf.readers.gpu.nvidia import open_nvidia


@pytest.mark.parametrize(
    ("environ", "uuids"),
    [
        ({}, ["GPU-aaaa", "MIG-0", "MIG-1"]),
        ({"CUDA_VISIBLE_DEVICES": "0"}, ["GPU-aaaa"]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, ["GPU-bbbb", "GPU-aaaa"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bb"}, ["GPU-bbbb"]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1"}, ["MIG-1"]),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, ["GPU-aaaa"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "9"}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, ["GPU-aaaa", "MIG-0", "MIG-1"]),
        ({"NVIDIA_VISIBLE_DEVICES": "1:0"}, ["MIG-0"]),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, ["GPU-aaaa"]),
    ],
)
def test_the_jobs_gpus_are_those_that_are_visible(
    environ: dict[str, str], uuids: list[str]
) -> None:
    """By index, UUID, beginning of a UUID and slice; another job's GPU is passed over."""
    assert [gpu.uuid for gpu in open_nvidia(FakeNvml(), environ)] == uuids


@given(st.text(max_size=30))
def test_no_list_of_devices_is_an_error(text: str) -> None:
    """Whatever the variable holds, it is a list of names or nothing."""
    assert all(list_visible_devices(["X"], {"X": text}) or [])
    open_nvidia(FakeNvml(), {"CUDA_VISIBLE_DEVICES": text})


def test_a_slice_has_memory_and_no_utilisation() -> None:
    """A MIG slice reports memory and GPU-hours; utilisation and energy are absent."""
    reader = GpuReader(lambda: open_nvidia(FakeNvml(), {"CUDA_VISIBLE_DEVICES": "MIG-0"}))
    metrics = summarise_job(reader)
    assert metrics["max_t_gpu_mem_percent"] == 50.0
    assert metrics["node_gpu_hours"] == pytest.approx(1.0)
    assert metrics.keys().isdisjoint({"gpu_avg_utilization_pct", "gpu_energy_wh"})


def test_all_that_the_driver_sampled_between_two_questions_counts() -> None:
    """A burst of half a second is in three samples of the driver, not in its rate of the moment."""
    nvml = FakeNvml()
    nvml.busy["GPU-aaaa"] = 0
    nvml.samples["GPU-aaaa"] = []
    (gpu,) = open_nvidia(nvml, {"CUDA_VISIBLE_DEVICES": "0"})
    assert gpu.state().busy_pct is None  # nothing is known yet, which is not 0%
    nvml.samples["GPU-aaaa"] = [(1_000_000, 90), (1_200_000, 5)]
    assert gpu.state().busy_pct == 5.0  # the sample before is of the time before the job
    nvml.samples["GPU-aaaa"] = [(1_200_000, 5), (1_400_000, 37), (1_600_000, 97), (1_800_000, 28)]
    assert gpu.state().busy_pct == pytest.approx(54.0)
    assert gpu.state().busy_pct == pytest.approx(54.0)  # none since


def test_memory_that_the_driver_reserves_is_nobodys() -> None:
    """A driver that tells what it reserves does not count it as used."""
    nvml = FakeNvml()
    (gpu,) = open_nvidia(nvml, {"CUDA_VISIBLE_DEVICES": "0"})
    assert gpu.state().used_bytes == 1 << 30
    nvml.reserved = 1 << 29
    assert gpu.state().used_bytes == 1 << 29
