"""NVIDIA's GPUs, through nvidia-ml-py; no other module imports `pynvml`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from mlflow_perf.core.extras import needing
from mlflow_perf.readers.gpu.gpu import Gpu, GpuState, Others, find_visible_gpus
from mlflow_perf.readers.gpu.gpu_processes import GpuProcesses

# The narrowest first. A scheduler's own list covers all of the job's ranks on the node.
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def open_nvidia(
    pynvml: ModuleType | Any = None,
    environ: Mapping[str, str] = os.environ,
    *,
    others: Others | None = None,
    processes: GpuProcesses | None = None,
) -> list[Gpu]:
    """Open the library and return the GPUs, or slices of GPUs (MIG), that the job may use.

    Args:
        pynvml: The library, or a recorded stand-in for it.
        environ: Environment variables.
        others: Returns the environments of the node's other ranks; see `find_visible_gpus`.
        processes: Tells the job's processes from others'; without it, all is taken as the job's.

    Raises:
        MissingDependencyError: When nvidia-ml-py is not installed.
    """
    if pynvml is None:
        with needing("nvidia-ml-py", "gpu"):
            pynvml = import_module("pynvml")
    pynvml.nvmlInit()
    devices: list[_Nvidia] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            devices.append(_Nvidia(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index), processes))
        except pynvml.NVMLError:  # another job's, which this one may not open
            continue

    def find(name: str) -> _Nvidia | None:
        """Return the GPU or slice that a variable names: `0`, `GPU-8932f9`, `MIG-…`, `0:1`."""
        gpu, has_slice, part = name.partition(":")
        if gpu.isdecimal() and (part.isdecimal() or not has_slice):
            if int(gpu) >= len(devices):
                return None
            slices = devices[int(gpu)].slices
            if not has_slice:
                return devices[int(gpu)]
            return slices[int(part)] if int(part) < len(slices) else None
        everything = [*devices, *(part for whole in devices for part in whole.slices)]
        return next((device for device in everything if device.uuid.startswith(name)), None)

    found = find_visible_gpus(find, _VISIBLE, environ, others)
    if found is None:
        found = [gpu for whole in devices for gpu in (whole.slices or [whole])]
    return [*found]


class _Nvidia:
    """One GPU, or one MIG slice of one."""

    def __init__(
        self, pynvml: Any, handle: Any, processes: GpuProcesses | None, *, is_slice: bool = False
    ) -> None:
        self._nvml, self._handle, self._is_slice = pynvml, handle, is_slice
        self._processes = processes
        self._newest_us = 0  # of what the driver told of processes
        self._sampled_us = 0  # the same of its samples of the GPU
        self._busy_pct: float | None = None
        self._own_share: float | None = None  # the job's part of the GPU's work, as last known
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        self.uuid: str = uuid.decode() if isinstance(uuid, bytes) else uuid
        self.slices: list[_Nvidia] = []
        # None or 0 for a model without MIG, and for a slice.
        mode = None if is_slice else self._ask(pynvml.nvmlDeviceGetMigMode)
        count = self._ask(pynvml.nvmlDeviceGetMaxMigDeviceCount) if mode and mode[0] else 0
        for index in range(count or 0):
            try:
                part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
                self.slices.append(_Nvidia(pynvml, part, None, is_slice=True))
            except pynvml.NVMLError:
                continue

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        try:
            return question(self._handle)
        except self._nvml.NVMLError:  # this model does not support it, or the GPU is lost
            return None

    def state(self) -> GpuState:
        """Return its present state."""
        # The second version does not count what the driver reserves: some 0.5 GB of a large GPU.
        memory = self._ask(
            lambda gpu: self._nvml.nvmlDeviceGetMemoryInfo(gpu, self._nvml.nvmlMemory_v2)
        ) or self._ask(self._nvml.nvmlDeviceGetMemoryInfo)
        used = whole = None
        if memory is not None:
            used, whole = float(memory.used), float(memory.total)
        if self._is_slice:
            # Utilisation and energy are counted for whole GPUs only.
            return GpuState(None, used, whole, None)
        busy_pct = self._measure_busy()
        energy_mj = self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        others_busy_pct = others_bytes = None
        users, processes = self._list_memory_users(), self._processes
        if processes is not None and not processes.has_server(users or ()):
            computing = self._list_computing()
            # While nobody has computed since, the GPU still shows the moment before.
            if computing is None or computing:
                self._own_share = processes.find_own_share(computing or {})
            is_idle = busy_pct == 0 and computing is not None
            share = 0.0 if is_idle and self._own_share is None else self._own_share
            if busy_pct is not None and share is not None:
                busy_pct, others_busy_pct = busy_pct * share, busy_pct * (1.0 - share)
            others_bytes = None if users is None else processes.sum_others(users)
            if used is not None and others_bytes is not None:
                used = max(0.0, used - others_bytes)
        return GpuState(
            busy_pct=busy_pct,
            used_bytes=used,
            whole_bytes=whole,
            energy_j=None if energy_mj is None else energy_mj / 1000.0,
            others_busy_pct=others_busy_pct,
            others_bytes=others_bytes,
        )

    def _measure_busy(self) -> float | None:
        """Return how busy the GPU was since the question before, in per cent; None if unknown.

        The driver keeps several samples a second. Its rate of the moment is only the newest.
        """
        which, since_us = self._nvml.NVML_GPU_UTILIZATION_SAMPLES, self._sampled_us
        try:
            _, found = self._nvml.nvmlDeviceGetSamples(self._handle, which, since_us)
        except self._nvml.NVMLError_NotFound:  # none since
            return self._busy_pct
        except self._nvml.NVMLError:
            rates = self._ask(self._nvml.nvmlDeviceGetUtilizationRates)
            return None if rates is None else float(rates.gpu)
        fresh = [sample for sample in found if sample.timeStamp > since_us]
        if fresh:
            self._sampled_us = max(sample.timeStamp for sample in fresh)
            # Those before the first question are of the time before the job.
            counted = fresh if since_us else fresh[-1:]
            self._busy_pct = sum(sample.sampleValue.uiVal for sample in counted) / len(counted)
        return self._busy_pct

    def _list_memory_users(self) -> dict[int, float | None] | None:
        """Return PID → bytes, None where those are unknown; None when the driver tells nothing."""
        computing = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses)
        if computing is None or self._processes is None:
            return None
        drawing = self._ask(self._nvml.nvmlDeviceGetGraphicsRunningProcesses)
        # One that does both is in both lists, with the same memory.
        return {user.pid: user.usedGpuMemory for user in (*(drawing or ()), *computing)}

    def _list_computing(self) -> dict[int, float] | None:
        """Return PID → work since the question before; None when the driver does not tell."""
        try:
            found = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._newest_us)
        except self._nvml.NVMLError_NotFound:  # nobody computed since
            return {}
        except self._nvml.NVMLError:
            return None
        users: dict[int, float] = {}
        before = self._newest_us
        for sample in found:
            # Some drivers add old samples, and such as cannot be (nvtop's issue 110).
            if sample.timeStamp > before and 0 < sample.smUtil <= 100:
                users[sample.pid] = users.get(sample.pid, 0.0) + sample.smUtil
                self._newest_us = max(self._newest_us, sample.timeStamp)
        return users
