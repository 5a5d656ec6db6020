"""Recorded stand-ins of GPUs and of their libraries.

They answer as an H200 did, and where it was not asked as the library's documentation says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

from mlflow_perf.model.summary import summarise
from mlflow_perf.readers.gpu.gpu import Gpu, GpuReader, GpuState
from mlflow_perf.sampling.sampler import PerformanceReportingThread
from mlflow_perf.testing import FakeClock

GIB = 1 << 30


class FakeNvml:
    """Two GPUs as `pynvml` shows them; the second is divided into two slices (MIG)."""

    class NVMLError(Exception):
        """What the library raises."""

    class NVMLError_NotFound(NVMLError):  # noqa: N801, N818 - the library's name
        """What it raises where no process computed."""

    nvmlMemory_v2 = 0x2000028  # noqa: N815 - the library's name
    NVML_GPU_UTILIZATION_SAMPLES = 1

    def __init__(self) -> None:
        self.busy = {"GPU-aaaa": 80, "GPU-bbbb": 40}
        self.samples: dict[str, Sequence[tuple[int, int]]] = {}  # (time in µs, per cent)
        self.reserved: int | None = None  # None: as a driver that has not the second version
        self.users: dict[str, Mapping[int, int | None]] = {}
        self.drawing: dict[str, Mapping[int, int | None]] = {}
        self.computing: dict[str, Sequence[tuple[int, int, int]]] = {}
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

    def nvmlDeviceGetMemoryInfo(  # noqa: N802
        self, handle: str, version: int | None = None
    ) -> SimpleNamespace:
        if version is not None and self.reserved is None:
            raise self.NVMLError("Function Not Found")
        reserved = self.reserved if version else None
        total = (4 if handle.startswith("GPU") else 2) * GIB
        return SimpleNamespace(used=GIB - (reserved or 0), total=total, reserved=reserved)

    def nvmlDeviceGetSamples(  # noqa: N802
        self, handle: str, which: int, last_seen_us: int
    ) -> tuple[int, list[SimpleNamespace]]:
        if handle not in self.samples or which != self.NVML_GPU_UTILIZATION_SAMPLES:
            raise self.NVMLError("Not Supported")
        fresh = [sample for sample in self.samples[handle] if sample[0] > last_seen_us]
        if not fresh:
            raise self.NVMLError_NotFound("Not Found")
        return 1, [
            SimpleNamespace(timeStamp=at, sampleValue=SimpleNamespace(uiVal=busy))
            for at, busy in fresh
        ]

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:  # noqa: N802
        if handle not in self.busy:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=self.busy[handle], memory=3)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        return self.energy_mj[handle]

    def nvmlDeviceGetComputeRunningProcesses(  # noqa: N802
        self, handle: str
    ) -> list[SimpleNamespace]:
        if handle not in self.users:
            raise self.NVMLError("Not Supported")
        users = self.users[handle].items()
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in users]

    def nvmlDeviceGetGraphicsRunningProcesses(  # noqa: N802
        self, handle: str
    ) -> list[SimpleNamespace]:
        users = self.drawing.get(handle, {}).items()
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in users]

    def nvmlDeviceGetProcessUtilization(  # noqa: N802
        self, handle: str, last_seen_us: int
    ) -> list[SimpleNamespace]:
        if handle not in self.computing:
            raise self.NVMLError("Not Supported")
        if all(at <= last_seen_us for _, at, _ in self.computing[handle]):
            raise self.NVMLError_NotFound("Not Found")
        return [
            SimpleNamespace(pid=pid, timeStamp=at, smUtil=busy, memUtil=1)
            for pid, at, busy in self.computing[handle]
        ]


def record_processes(
    proc: Path, names: Mapping[int, str], *, namespace: str = "pid:[4026531836]"
) -> Path:
    """Record a procfs with processes, by their names, and return it."""
    (proc / "self" / "ns").mkdir(parents=True)
    (proc / "self" / "ns" / "pid").symlink_to(namespace)
    for pid, name in names.items():
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "comm").write_text(f"{name[:15]}\n")
    return proc


class Named:
    """A GPU with the device's name as its UUID."""

    def __init__(self, name: str) -> None:
        self.uuid = name

    def state(self) -> GpuState:
        """Return nothing: it is never asked."""
        return GpuState()


def list_names(gpus: Sequence[Gpu] | None) -> list[str] | None:
    """Return the names of GPUs; None for all."""
    return None if gpus is None else [gpu.uuid for gpu in gpus]


def summarise_job(
    reader: GpuReader, *, before_each: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """Return the summary of a simulated job of three samples."""
    reader._source._patience_sec = 10.0
    reports: list[dict[str, float]] = []

    class Clock(FakeClock):
        def wait(self, event: threading.Event, timeout_sec: float) -> bool:
            before_each()
            return super().wait(event, timeout_sec)

    thread = PerformanceReportingThread(
        1800.0, callback_on_loop=reports.append, readers=[reader], clock=Clock(stop_after=3600.0)
    )
    thread.start()
    thread.join()
    return summarise(reports)
