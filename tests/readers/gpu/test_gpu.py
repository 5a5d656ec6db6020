"""The GPU reader, and the choice of the GPUs that the job owns."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.readers.gpu.stand_ins import FakeNvml, Named, list_names, summarise_job

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.metrics import find_metric
from mlflow_perf.model.summary import summarise_run
from mlflow_perf.readers.gpu.gpu import (
    Gpu,
    GpuReader,
    find_visible_gpus,
)
from mlflow_perf.readers.gpu.nvidia import open_nvidia

CUDA = ("CUDA_VISIBLE_DEVICES",)


def fail() -> list[Gpu]:
    """Fail as a broken driver does."""
    raise OSError("a broken driver")


def test_utilisation_memory_hours_and_energy_of_each_gpu_and_all() -> None:
    """Two whole GPUs for an hour: 2 GPU-hours, their mean utilisation, their counters' growth."""
    nvml = FakeNvml()

    def work() -> None:
        nvml.energy_mj = {gpu: mj + 360_000_000 for gpu, mj in nvml.energy_mj.items()}

    reader = GpuReader(lambda: open_nvidia(nvml, {"CUDA_VISIBLE_DEVICES": "0,1"}))
    metrics = summarise_job(reader, before_each=work)
    assert metrics["node_gpu_hours"] == pytest.approx(2.0)
    assert metrics["gpu_avg_utilization_pct"] == pytest.approx(60.0)
    assert metrics["node_unused_gpu_hours"] == pytest.approx(0.8)
    assert metrics["gpu0_avg_utilization_pct"] == pytest.approx(80.0)
    assert metrics["gpu1_avg_utilization_pct"] == pytest.approx(40.0)
    assert metrics["max_t_gpu_mem_percent"] == metrics["gpu1_max_t_mem_percent"] == 25.0
    assert metrics["max_t_gpu_mem_mb"] == 1024.0
    assert metrics["gpu0_energy_wh"] == pytest.approx(200.0)
    assert metrics["gpu_energy_wh"] == metrics["node_energy_wh"] == pytest.approx(400.0)
    assert not [key for key in metrics if find_metric(key) is None]
    run = summarise_run([metrics, metrics])
    assert run["run_gpu_hours"] == pytest.approx(4.0)
    assert run["run_gpu_avg_utilization_pct"] == pytest.approx(60.0)
    assert run["run_energy_wh"] == pytest.approx(800.0)


def test_a_driver_that_fails_or_hangs_costs_only_its_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A library that cannot be opened is one warning; one that hangs delays no read."""
    broken = GpuReader(fail)
    broken._source._thread.join(10)
    report: dict[str, float] = {}
    broken.read(report)
    assert report == {}
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1
    release = threading.Event()

    def hang() -> list[Gpu]:
        release.wait(60)
        return []

    hanging = GpuReader(hang)
    hanging.read(report)
    assert report == {}
    release.set()
    hanging.close()
    broken.close()


def test_without_a_driver_there_is_no_reader_and_no_library(tmp_path: Path) -> None:
    """Where no driver is, nothing is opened: the source is not there."""
    with pytest.raises(SourceUnavailableError):
        GpuReader(fail, marks=[str(tmp_path / "nvidiactl")])


@given(st.lists(st.text(alphabet="012,G-allnone ", max_size=8), max_size=4))
def test_the_union_has_each_device_once(texts: list[str]) -> None:
    """Whatever the ranks' variables hold: each device once, this rank's own first, or all."""
    environs = [{CUDA[0]: text} for text in texts]
    found = list_names(find_visible_gpus(Named, CUDA, {CUDA[0]: "2"}, lambda _: environs))
    if found is not None:
        assert found[0] == "2"
        assert len(found) == len(set(found))
