"""AMD's GPUs, through amdsmi: the only module that imports it. Imports gpu."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from mlflow_perf.errors import MissingDependencyError
from mlflow_perf.readers.gpu.gpu import Gpu, GpuState, Others, gpus_of

__all__ = ["open_amd"]

_VISIBLE = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def open_amd(
    amdsmi: ModuleType | Any = None,
    environ: Mapping[str, str] = os.environ,
    *,
    others: Others | None = None,
) -> list[Gpu]:
    """Open the library and return the GPUs that the job may use.

    Args:
        amdsmi: The library, or a recorded stand-in for it.
        environ: Environment variables.
        others: Returns the environments of the node's other ranks; see `gpus_of`.

    Raises:
        MissingDependencyError: When amdsmi is not installed.
    """
    if amdsmi is None:
        try:
            amdsmi = import_module("amdsmi")
        except ImportError:
            raise MissingDependencyError("amdsmi", "amd") from None
    amdsmi.amdsmi_init()
    devices = [
        _Amd(amdsmi, handle, index)
        for index, handle in enumerate(amdsmi.amdsmi_get_processor_handles())
    ]
    found = gpus_of(lambda name: _find(devices, name), _VISIBLE, environ, others)
    return list(devices) if found is None else found


class _Amd:
    """One GPU."""

    def __init__(self, amdsmi: Any, handle: Any, index: int) -> None:
        self._smi, self._handle = amdsmi, handle
        self.uuid = str(self._ask(amdsmi.amdsmi_get_gpu_device_uuid) or f"#{index}")
        kind = amdsmi.AmdSmiMemoryType.VRAM
        self._used = lambda handle: amdsmi.amdsmi_get_gpu_memory_usage(handle, kind)
        self._whole = self._ask(lambda handle: amdsmi.amdsmi_get_gpu_memory_total(handle, kind))

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        try:
            return question(self._handle)
        except self._smi.AmdSmiException:  # not supported by this model, or the GPU is lost
            return None

    def state(self) -> GpuState:
        """Return how it is now."""
        activity = self._ask(self._smi.amdsmi_get_gpu_activity) or {}
        return GpuState(
            busy_pct=_number(activity.get("gfx_activity")),
            used_bytes=_number(self._ask(self._used)),
            whole_bytes=_number(self._whole),
            energy_j=_joules(self._ask(self._smi.amdsmi_get_energy_count) or {}),
        )


def _number(value: Any) -> float | None:
    # "N/A" stands for what a model does not tell.
    return float(value) if isinstance(value, (int, float)) else None


def _joules(count: Mapping[str, Any]) -> float | None:
    # Named "power" before ROCm 6.
    steps = _number(count.get("energy_accumulator", count.get("power")))
    step_uj = _number(count.get("counter_resolution"))
    return None if steps is None or step_uj is None else steps * step_uj / 1e6


def _find(devices: list[_Amd], name: str) -> _Amd | None:
    if name.isdecimal():
        return devices[int(name)] if int(name) < len(devices) else None
    wanted = name.lower().removeprefix("gpu-")
    return next((d for d in devices if d.uuid.lower().replace("-", "").endswith(wanted)), None)
