"""A right size as lines to paste."""

from __future__ import annotations

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


@given(cpus=st.integers(1, 200), memory=st.integers(128, 2_000_000), gpus=st.integers(0, 10))
def test_the_azure_machine_is_enough_and_none_smaller_is(cpus: int, memory: int, gpus: int) -> None:
    """The machine has what is asked for; where none has, the lines say so."""
    parsed = yaml.safe_load(azureml_lines(_size(cpus, memory, gpus=gpus)))["resources"]
    enough = [
        m for m in AZURE_SIZES if m.cpus >= cpus and m.memory_mb * 0.9 >= memory and m.gpus >= gpus
    ]
    assert ("instance_type" in parsed) == bool(enough)
    if enough:
        chosen = next(m for m in AZURE_SIZES if m.name == parsed["instance_type"])
        assert chosen in enough
        assert (chosen.gpus, chosen.cpus) == min((m.gpus, m.cpus) for m in enough)
    assert parsed["instance_count"] == 2
