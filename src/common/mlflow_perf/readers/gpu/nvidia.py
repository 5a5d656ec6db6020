"""NVIDIA's GPUs, through nvidia-ml-py: the only module that imports `pynvml`. Imports gpu."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from mlflow_perf.errors import MissingDependencyError
from mlflow_perf.readers.gpu.gpu import Gpu, GpuState, Others, gpus_of

__all__ = ["open_nvidia"]

# The narrowest first. A scheduler's own list speaks of all of the job's ranks on the node.
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def open_nvidia(
    pynvml: ModuleType | Any = None,
    environ: Mapping[str, str] = os.environ,
    *,
    others: Others | None = None,
) -> list[Gpu]:
    """Open the library and return the GPUs, or slices of GPUs (MIG), that the job may use.

    Args:
        pynvml: The library, or a recorded stand-in for it.
        environ: Environment variables.
        others: Returns the environments of the node's other ranks; see `gpus_of`.

    Raises:
        MissingDependencyError: When nvidia-ml-py is not installed.
    """
    if pynvml is None:
        try:
            pynvml = import_module("pynvml")
        except ImportError:
            raise MissingDependencyError("nvidia-ml-py", "gpu") from None
    pynvml.nvmlInit()
    devices = list(_devices(pynvml))
    found = gpus_of(lambda name: _find(devices, name), _VISIBLE, environ, others)
    if found is None:
        return [gpu for whole in devices for gpu in (whole.slices or [whole])]
    return found


class _Nvidia:
    """One GPU, or one MIG slice of one."""

    def __init__(self, pynvml: Any, handle: Any, *, sliced: bool = False) -> None:
        self._nvml, self._handle, self._sliced = pynvml, handle, sliced
        self.uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
        self.slices: list[_Nvidia] = []

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        try:
            return question(self._handle)
        except self._nvml.NVMLError:  # not supported by this model, or the GPU is lost
            return None

    def state(self) -> GpuState:
        """Return how it is now."""
        memory = self._ask(self._nvml.nvmlDeviceGetMemoryInfo)
        used = whole = None
        if memory is not None:
            used, whole = float(memory.used), float(memory.total)
        if self._sliced:
            # Utilisation and energy are counted for whole GPUs only.
            return GpuState(None, used, whole, None)
        rates = self._ask(self._nvml.nvmlDeviceGetUtilizationRates)
        energy_mj = self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        return GpuState(
            busy_pct=None if rates is None else float(rates.gpu),
            used_bytes=used,
            whole_bytes=whole,
            energy_j=None if energy_mj is None else energy_mj / 1000.0,
        )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _devices(pynvml: Any) -> Iterator[_Nvidia]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpu = _Nvidia(pynvml, handle)
        except pynvml.NVMLError:  # another job's, which this one may not open
            continue
        gpu.slices = list(_slices(pynvml, handle))
        yield gpu


def _slices(pynvml: Any, handle: Any) -> Iterator[_Nvidia]:
    try:
        if not pynvml.nvmlDeviceGetMigMode(handle)[0]:
            return
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except pynvml.NVMLError:  # a model without MIG
        return
    for index in range(count):
        try:
            yield _Nvidia(
                pynvml, pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index), sliced=True
            )
        except pynvml.NVMLError:
            continue


def _find(devices: Sequence[_Nvidia], name: str) -> _Nvidia | None:
    """Return the GPU or slice that a variable names: `0`, `GPU-8932f9`, `MIG-…`, `0:1`."""
    if name.isdecimal():
        return devices[int(name)] if int(name) < len(devices) else None
    gpu, _, part = name.partition(":")
    if gpu.isdecimal() and part.isdecimal() and int(gpu) < len(devices):
        slices = devices[int(gpu)].slices
        return slices[int(part)] if int(part) < len(slices) else None
    everything = [*devices, *(part for whole in devices for part in whole.slices)]
    return next((device for device in everything if device.uuid.startswith(name)), None)
