"""AMD's GPUs through a recorded stand-in of the library."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mlflow_perf.readers.gpu.amd import open_amd
from mlflow_perf.readers.gpu.gpu import (
    GpuState,
)

GIB = 1 << 30


def test_the_state_of_a_visible_gpu() -> None:
    """State, UUIDs and visibility come from AMD's library."""
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
    state = gpu.state()
    assert state == GpuState(30.0, 3.0 * GIB, 4.0 * GIB, state.energy_j)
    assert state.energy_j == pytest.approx(30.6)
    assert len(open_amd(smi, {})) == 2
    assert [g.uuid for g in open_amd(smi, {"HIP_VISIBLE_DEVICES": "1"})] == ["00ff-b"]
