"""A right size as lines to paste, for Slurm, Kubernetes and Azure ML."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from mlflow_perf.analysis.machines import Machine
from mlflow_perf.analysis.rightsize import RightSize
from mlflow_perf.core.format import format_count

_GIB = 1024

# Common sizes that Azure ML offers, from the smallest; laid out as the table it is.
# fmt: off
AZURE_SIZES: tuple[Machine, ...] = (
    Machine("Standard_F2s_v2", 2, 4 * _GIB),
    Machine("Standard_D2s_v3", 2, 8 * _GIB),
    Machine("Standard_E2s_v3", 2, 16 * _GIB),
    Machine("Standard_F4s_v2", 4, 8 * _GIB),
    Machine("Standard_D4s_v3", 4, 16 * _GIB),
    Machine("Standard_E4s_v3", 4, 32 * _GIB),
    Machine("Standard_F8s_v2", 8, 16 * _GIB),
    Machine("Standard_D8s_v3", 8, 32 * _GIB),
    Machine("Standard_E8s_v3", 8, 64 * _GIB),
    Machine("Standard_F16s_v2", 16, 32 * _GIB),
    Machine("Standard_D16s_v3", 16, 64 * _GIB),
    Machine("Standard_E16s_v3", 16, 128 * _GIB),
    Machine("Standard_F32s_v2", 32, 64 * _GIB),
    Machine("Standard_D32s_v3", 32, 128 * _GIB),
    Machine("Standard_E32s_v3", 32, 256 * _GIB),
    Machine("Standard_F64s_v2", 64, 128 * _GIB),
    Machine("Standard_D64s_v3", 64, 256 * _GIB),
    Machine("Standard_E64s_v3", 64, 432 * _GIB),
    Machine("Standard_NC4as_T4_v3", 4, 28 * _GIB, 1, gpu_memory_mb=16 * _GIB),
    Machine("Standard_NC8as_T4_v3", 8, 56 * _GIB, 1, gpu_memory_mb=16 * _GIB),
    Machine("Standard_NC16as_T4_v3", 16, 110 * _GIB, 1, gpu_memory_mb=16 * _GIB),
    Machine("Standard_NC24ads_A100_v4", 24, 220 * _GIB, 1, gpu_memory_mb=80 * _GIB),
    Machine("Standard_NC40ads_H100_v5", 40, 320 * _GIB, 1, gpu_memory_mb=94 * _GIB),
    Machine("Standard_NC48ads_A100_v4", 48, 440 * _GIB, 2, gpu_memory_mb=80 * _GIB),
    Machine("Standard_NC64as_T4_v3", 64, 440 * _GIB, 4, gpu_memory_mb=16 * _GIB),
    Machine("Standard_NC96ads_A100_v4", 96, 880 * _GIB, 4, gpu_memory_mb=80 * _GIB),
    Machine("Standard_ND96asr_v4", 96, 900 * _GIB, 8, gpu_memory_mb=40 * _GIB),
    Machine("Standard_ND96isr_H100_v5", 96, 1900 * _GIB, 8, gpu_memory_mb=80 * _GIB),
    Machine("Standard_ND96isr_H200_v5", 96, 1850 * _GIB, 8, gpu_memory_mb=141 * _GIB),
)
# fmt: on


def slurm_lines(size: RightSize) -> str:
    """Return the `#SBATCH` lines that ask for a right size."""
    lines = [f"--nodes={size.nodes}", f"--ntasks-per-node={size.tasks_per_node}"]
    if size.cpus is not None:
        lines.append(f"--cpus-per-task={math.ceil(size.cpus / size.tasks_per_node)}")
    if size.memory_mb is not None:
        lines.append(f"--mem={size.memory_mb}M")
    if size.gpus:
        lines.append(f"--gpus-per-node={size.gpus}")
    if size.minutes is not None:
        hours, minutes = divmod(size.minutes, 60)
        lines.append(f"--time={hours:02d}:{minutes:02d}:00")
    return "\n".join(f"#SBATCH {line}" for line in lines)


def kubernetes_lines(size: RightSize) -> str:
    """Return the `resources` of a pod; one pod per node.

    The CPUs are a request without a limit: a limit throttles a job even on an idle node.
    """
    requests = []
    limits = []
    if size.cpus is not None:
        requests.append(f'    cpu: "{size.cpus}"')
    if size.memory_mb is not None:
        requests.append(f"    memory: {size.memory_mb}Mi")
        limits.append(f"    memory: {size.memory_mb}Mi")
    if size.gpus:
        limits.append(f"    nvidia.com/gpu: {size.gpus}")
    lines = ["resources:"]
    lines += ["  requests:", *requests] if requests else []
    lines += ["  limits:", *limits] if limits else []
    return "\n".join(lines)


def find_azure_size(size: RightSize) -> Machine | None:
    """Return the smallest common machine of Azure that is enough; None if none is."""
    ordered = sorted(
        AZURE_SIZES, key=lambda m: (m.gpus, m.cpus, m.gpus and m.gpu_memory_mb, m.memory_mb)
    )
    return next((m for m in ordered if m.holds(size)), None)


def azureml_lines(size: RightSize) -> str:
    """Return the `resources` of an Azure ML job: the smallest common machine that is enough."""
    machine = find_azure_size(size)
    lines = ["resources:", f"  instance_count: {size.nodes}"]
    if machine is None:
        lines.append("  # no common machine is large enough: choose one by hand")
    else:
        each = f" of {machine.gpu_memory_mb // _GIB:g} GiB"
        gpus = f", {format_count(machine.gpus, 'GPU')}{each}" if machine.gpus else ""
        lines.append(
            f"  instance_type: {machine.name}"
            f"  # {machine.cpus:g} CPUs, {machine.memory_mb // _GIB:g} GiB{gpus}"
        )
    return "\n".join(lines)


LINES: Mapping[str, tuple[str, Callable[[RightSize], str]]] = {
    "slurm": ("Slurm", slurm_lines),
    "kubernetes": ("Kubernetes", kubernetes_lines),
    "azureml": ("Azure ML", azureml_lines),
}
"""Name of a system → its title, and what makes its lines."""
