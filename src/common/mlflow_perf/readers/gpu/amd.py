"""AMD's GPUs, through amdsmi; no other module imports it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from mlflow_perf.core.extras import needing
from mlflow_perf.readers.gpu.gpu import Gpu, GpuState, Others, find_visible_gpus

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
        others: Returns the environments of the node's other ranks; see `find_visible_gpus`.

    Raises:
        MissingDependencyError: When amdsmi is not installed.
    """
    if amdsmi is None:
        with needing("amdsmi", "amd"):
            amdsmi = import_module("amdsmi")
    amdsmi.amdsmi_init()
    devices = [
        _Amd(amdsmi, handle, index)
        for index, handle in enumerate(amdsmi.amdsmi_get_processor_handles())
    ]

    def find(name: str) -> _Amd | None:
        if name.isdecimal():
            return devices[int(name)] if int(name) < len(devices) else None
        wanted = name.lower().removeprefix("gpu-")
        return next((d for d in devices if d.uuid.lower().replace("-", "").endswith(wanted)), None)

    found = find_visible_gpus(find, _VISIBLE, environ, others)
    return [*(devices if found is None else found)]


class _Amd:
    """One GPU."""

    def __init__(self, amdsmi: Any, handle: Any, index: int) -> None:
        self._smi, self._handle = amdsmi, handle
        self._vram = amdsmi.AmdSmiMemoryType.VRAM
        self.uuid = str(self._ask(amdsmi.amdsmi_get_gpu_device_uuid) or f"#{index}")
        self._whole = self._ask(amdsmi.amdsmi_get_gpu_memory_total, self._vram)

    def _ask(self, question: Callable[..., Any], *args: Any) -> Any:
        try:
            return question(self._handle, *args)
        except self._smi.AmdSmiException:  # this model does not support it, or the GPU is lost
            return None

    def state(self) -> GpuState:
        """Return its present state."""
        smi = self._smi
        activity = self._ask(smi.amdsmi_get_gpu_activity) or {}
        energy = self._ask(smi.amdsmi_get_energy_count) or {}
        # The counter is named "power" before ROCm 6.
        steps = _number(energy.get("energy_accumulator", energy.get("power")))
        step_uj = _number(energy.get("counter_resolution"))
        return GpuState(
            busy_pct=_number(activity.get("gfx_activity")),
            used_bytes=_number(self._ask(smi.amdsmi_get_gpu_memory_usage, self._vram)),
            whole_bytes=_number(self._whole),
            energy_j=None if steps is None or step_uj is None else steps * step_uj / 1e6,
        )


def _number(value: Any) -> float | None:
    # The library returns "N/A" for what a model does not report.
    return float(value) if isinstance(value, (int, float)) else None
