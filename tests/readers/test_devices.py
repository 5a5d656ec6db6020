"""GPUs through a recorded stand-in of the makers' libraries, and energy from recorded counters.

No GPU was at hand: what the stand-ins answer is what the libraries' documentation says.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.readers.trees import put

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.metrics import metric_for
from mlflow_perf.model.summary import summarise, summarise_run
from mlflow_perf.readers import default_readers
from mlflow_perf.readers.energy import RaplReader
from mlflow_perf.readers.gpu.amd import open_amd
from mlflow_perf.readers.gpu.gpu import GpuReader, GpuState, list_visible_devices
from mlflow_perf.readers.gpu.nvidia import open_nvidia
from mlflow_perf.sampling.sampler import PerformanceReportingThread
from mlflow_perf.testing import FakeClock

GIB = 1 << 30


class FakeNvml:
    """Two GPUs as `pynvml` shows them; the second is divided into two slices (MIG)."""

    class NVMLError(Exception):
        """What the library raises."""

    def __init__(self) -> None:
        self.busy = {"GPU-aaaa": 80, "GPU-bbbb": 40}
        self.energy_mj = {"GPU-aaaa": 1_000_000, "GPU-bbbb": 5_000_000}
        self.initialised = 0

    def nvmlInit(self) -> None:  # noqa: N802 - the library's name, as those below
        self.initialised += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        if index == 2:
            raise self.NVMLError("Insufficient Permissions")
        return ["GPU-aaaa", "GPU-bbbb"][index]

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:  # noqa: N802
        return handle.encode()

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        if handle == "GPU-aaaa":
            raise self.NVMLError("Not Supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:  # noqa: N802
        if index > 1:
            raise self.NVMLError("Not Found")
        return f"MIG-{index}"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=GIB, total=(4 if handle.startswith("GPU") else 2) * GIB)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:  # noqa: N802
        if handle not in self.busy:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=self.busy[handle], memory=3)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        return self.energy_mj[handle]


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
def test_the_jobs_gpus_are_those_that_are_visible(environ, uuids) -> None:
    """By index, UUID, beginning of a UUID and slice; another job's GPU is passed over."""
    assert [gpu.uuid for gpu in open_nvidia(FakeNvml(), environ)] == uuids


@given(st.text(max_size=30))
def test_no_list_of_devices_is_an_error(text: str) -> None:
    """Whatever the variable holds, it is a list of names or nothing."""
    assert all(list_visible_devices(["X"], {"X": text}) or [])
    open_nvidia(FakeNvml(), {"CUDA_VISIBLE_DEVICES": text})


def sampled(reader: GpuReader, *, before_each=lambda: None) -> dict[str, float]:
    """Return the summary of a simulated job of three samples."""
    reader._source._patience_sec = 10.0
    reports: list[dict[str, float]] = []

    class Clock(FakeClock):
        def wait(self, event, timeout_sec):
            before_each()
            return super().wait(event, timeout_sec)

    thread = PerformanceReportingThread(
        1800.0, callback_on_loop=reports.append, readers=[reader], clock=Clock(stop_after=3600.0)
    )
    thread.start()
    thread.join()
    return summarise(reports)


def test_utilisation_memory_hours_and_energy_of_each_gpu_and_all() -> None:
    """Two whole GPUs for an hour: 2 GPU-hours, their mean utilisation, their counters' growth."""
    nvml = FakeNvml()

    def work() -> None:
        nvml.energy_mj = {gpu: mj + 360_000_000 for gpu, mj in nvml.energy_mj.items()}

    reader = GpuReader(lambda: open_nvidia(nvml, {"CUDA_VISIBLE_DEVICES": "0,1"}))
    metrics = sampled(reader, before_each=work)
    assert metrics["node_gpu_hours"] == pytest.approx(2.0)
    assert metrics["gpu_avg_utilization_pct"] == pytest.approx(60.0)
    assert metrics["node_unused_gpu_hours"] == pytest.approx(0.8)
    assert metrics["gpu0_avg_utilization_pct"] == pytest.approx(80.0)
    assert metrics["gpu1_avg_utilization_pct"] == pytest.approx(40.0)
    assert metrics["max_t_gpu_mem_percent"] == metrics["gpu1_max_t_mem_percent"] == 25.0
    assert metrics["gpu0_energy_wh"] == pytest.approx(200.0)
    assert metrics["gpu_energy_wh"] == metrics["node_energy_wh"] == pytest.approx(400.0)
    assert not [key for key in metrics if metric_for(key) is None]
    run = summarise_run([metrics, metrics])
    assert run["run_gpu_hours"] == pytest.approx(4.0)
    assert run["run_gpu_avg_utilization_pct"] == pytest.approx(60.0)
    assert run["run_energy_wh"] == pytest.approx(800.0)


def test_a_slice_has_memory_and_no_utilisation() -> None:
    """MIG slices tell their memory only: the rest is absent, and hours are held."""
    reader = GpuReader(lambda: open_nvidia(FakeNvml(), {"CUDA_VISIBLE_DEVICES": "MIG-0"}))
    metrics = sampled(reader)
    assert metrics["max_t_gpu_mem_percent"] == 50.0
    assert metrics["node_gpu_hours"] == pytest.approx(1.0)
    assert metrics.keys().isdisjoint({"gpu_avg_utilization_pct", "gpu_energy_wh"})


def test_amd() -> None:
    """The same figures from the other maker's library."""
    smi = SimpleNamespace(
        AmdSmiException=KeyError,
        AmdSmiMemoryType=SimpleNamespace(VRAM="vram"),
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: ["a", "b"],
        amdsmi_get_gpu_device_uuid=lambda handle: f"00ff-{handle}",
        amdsmi_get_gpu_memory_usage=lambda handle, kind: 3 * GIB,
        amdsmi_get_gpu_memory_total=lambda handle, kind: 4 * GIB,
        amdsmi_get_gpu_activity=lambda handle: {"gfx_activity": 30, "umc_activity": "N/A"},
        amdsmi_get_energy_count=lambda handle: {
            "energy_accumulator": 2_000_000, "counter_resolution": 15.3,
        },
    )  # fmt: skip
    (gpu,) = open_amd(smi, {"ROCR_VISIBLE_DEVICES": "GPU-00ffb"})
    assert gpu.state() == GpuState(30.0, 3.0 * GIB, 4.0 * GIB, pytest.approx(30.6))
    assert len(open_amd(smi, {})) == 2
    assert [g.uuid for g in open_amd(smi, {"HIP_VISIBLE_DEVICES": "1"})] == ["00ff-b"]


def test_a_driver_that_fails_or_hangs_costs_only_its_figures(caplog) -> None:
    """A library that cannot be opened is one warning; one that never answers is no wait."""
    broken = GpuReader(lambda: 1 / 0)
    broken._source._thread.join(10)
    report: dict[str, float] = {}
    broken.read(report)
    assert report == {}
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1
    release = threading.Event()
    hanging = GpuReader(lambda: release.wait(60) and [])
    hanging.read(report)
    assert report == {}
    release.set()
    hanging.close()
    broken.close()


def test_without_a_driver_there_is_no_reader_and_no_library(tmp_path: Path) -> None:
    """Where no driver is, nothing is opened: the source is not there."""
    with pytest.raises(SourceUnavailableError):
        GpuReader(lambda: 1 / 0, marks=[str(tmp_path / "nvidiactl")])


def zone(sys: Path, name: str, kind: str, energy_uj: int, range_uj: int = 10**9) -> None:
    """Write one RAPL zone."""
    put(sys / "class/powercap" / name / "name", kind + "\n")
    put(sys / "class/powercap" / name / "energy_uj", f"{energy_uj}\n")
    put(sys / "class/powercap" / name / "max_energy_range_uj", f"{range_uj}\n")


def test_energy_of_packages_and_memory_counts_once(tmp_path: Path) -> None:
    """Packages and memory count; cores (within the package) and the platform do not again."""
    names = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram",
             "intel-rapl:1": "package-1", "intel-rapl:2": "psys"}  # fmt: skip
    for name, kind in names.items():
        zone(tmp_path, name, kind, 900_000_000)
    reader = RaplReader(tmp_path)
    report: dict[str, float] = {}
    for name, kind in names.items():
        zone(tmp_path, name, kind, 990_000_000)
    reader.read(report)
    assert report["cpu_energy_wh"] == pytest.approx(3 * 0.025)
    for name, kind in names.items():
        zone(tmp_path, name, kind, 80_000_000)
    reader.read(report)
    assert report["cpu_energy_wh"] == pytest.approx(3 * 0.05)
    reader.close()


def test_energy_that_may_not_be_read_is_absent(tmp_path: Path) -> None:
    """Without counters, or with damaged ones, the source is not there."""
    with pytest.raises(SourceUnavailableError):
        RaplReader(tmp_path)
    zone(tmp_path, "intel-rapl:0", "package-0", 1)
    put(tmp_path / "class/powercap/intel-rapl:0/energy_uj", "nonsense")
    with pytest.raises(SourceUnavailableError):
        RaplReader(tmp_path)


def test_cost_is_the_price_times_the_hours() -> None:
    """Half an hour at 4 per hour is 2; what the CPUs did not use of it is unused."""
    rows = [{"elapsed_sec": t, "cpu_pct_per_cpu_avg": 25.0} for t in (0.0, 1800.0)]
    metrics = summarise(rows, facts={"node_price": 4.0})
    assert metrics["node_cost"] == pytest.approx(2.0)
    assert metrics["node_unused_cost"] == pytest.approx(1.5)
    assert "node_cost" not in summarise(rows)
    rows = [{**row, "gpu_utilization_pct": 90.0} for row in rows]
    assert summarise(rows, facts={"node_price": 4.0})["node_unused_cost"] == pytest.approx(0.2)
    assert summarise_run([metrics] * 3)["run_cost"] == pytest.approx(6.0)


def test_this_machine_opens_what_it_has() -> None:
    """The default readers never name a source twice."""
    readers = default_readers()
    names = [reader.name for reader in readers]
    for reader in readers:
        reader.close()
    assert len(names) == len(set(names))
    assert {"cpu", "memory", "processes", "limits"} <= set(names)
