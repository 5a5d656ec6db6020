"""A right size as lines to paste."""

from __future__ import annotations

from dataclasses import replace

import yaml
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.analysis.resource_lines import (
    AZURE_SIZES,
    azureml_lines,
    kubernetes_lines,
    slurm_lines,
)
from mlflow_perf.analysis.rightsize import RightSize


def _size(
    cpus: int = 3, memory_mb: int = 1856, *, gpus: int = 0, tasks_per_node: int = 1
) -> RightSize:
    return RightSize(cpus, memory_mb, 2, gpus, tasks_per_node=tasks_per_node, minutes=95)


def test_slurm_lines_are_options_of_sbatch() -> None:
    """Each line is one option with its value; the cores are shared by the ranks of the node."""
    options = dict(
        line.removeprefix("#SBATCH --").split("=") for line in slurm_lines(_size()).splitlines()
    )
    assert options == {
        "nodes": "2",
        "ntasks-per-node": "1",
        "cpus-per-task": "3",
        "mem": "1856M",
        "time": "01:35:00",
    }
    assert "--cpus-per-task=2" in slurm_lines(_size(tasks_per_node=2))


def test_kubernetes_lines_are_yaml() -> None:
    """The block parses; memory is requested and limited, the CPU is only requested."""
    parsed = yaml.safe_load(kubernetes_lines(_size()))["resources"]
    assert parsed == {
        "requests": {"cpu": "3", "memory": "1856Mi"},
        "limits": {"memory": "1856Mi"},
    }


@given(
    cpus=st.integers(1, 200),
    memory=st.integers(128, 2_000_000),
    gpus=st.integers(0, 10),
    gpu_memory=st.none() | st.integers(1, 160_000),
)
def test_the_azure_machine_is_enough_and_none_smaller_is(
    cpus: int, memory: int, gpus: int, gpu_memory: int | None
) -> None:
    """The machine has what is asked for; where none has, the lines say so."""
    size = replace(_size(cpus, memory, gpus=gpus), gpu_memory_mb=gpu_memory)
    parsed = yaml.safe_load(azureml_lines(size))["resources"]
    enough = [
        m
        for m in AZURE_SIZES
        if m.cpus >= cpus
        and m.memory_mb * 0.9 >= memory
        and m.gpus >= gpus
        and (not gpus or m.gpu_memory_mb >= (gpu_memory or 0))
    ]
    assert ("instance_type" in parsed) == bool(enough)
    if enough:
        chosen = next(m for m in AZURE_SIZES if m.name == parsed["instance_type"])
        assert chosen in enough
        assert (chosen.gpus, chosen.cpus) == min((m.gpus, m.cpus) for m in enough)
    assert parsed["instance_count"] == 2


def test_each_machine_with_gpus_says_how_much_memory_they_have() -> None:
    """Else a job would be sent to GPUs that cannot hold it."""
    assert all(m.gpu_memory_mb > 0 for m in AZURE_SIZES if m.gpus)
    line = azureml_lines(replace(_size(gpus=1), gpu_memory_mb=90_000))
    assert "Standard_NC40ads_H100_v5  # 40 CPUs, 320 GiB, 1 GPU of 94 GiB" in line
    # The smallest GPU that is enough, where several machines have as many.
    eight = replace(_size(gpus=8), gpu_memory_mb=60_000)
    line = azureml_lines(eight)
    assert "Standard_ND96isr_H100_v5" in line
    assert "8 GPUs of " in line
