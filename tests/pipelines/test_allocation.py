"""What schedulers and services are asked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mlflow_perf.pipelines.allocation import ask_azure, ask_providers, make_specification
from mlflow_perf.pipelines.step_sizes import StepSize

SIZES = {"a": StepSize(3000, 2), "b": StepSize(1000, 4)}


def test_slurm_is_asked_for_the_largest_step() -> None:
    """Parsl's provider writes `--mem=3g`; a size that the user set is kept."""
    slurm = pytest.importorskip("parsl.providers").SlurmProvider
    free, own = slurm(partition="p"), slurm(partition="p", mem_per_node=9, cores_per_node=1)
    executors = [SimpleNamespace(provider=p) for p in (free, own, None)]
    ask_providers(executors, SIZES)
    assert (free.mem_per_node, free.cores_per_node) == (3, 4)
    assert (own.mem_per_node, own.cores_per_node) == (9, 1)
    free.mem_per_node = None
    ask_providers(executors, {**SIZES, "new": StepSize()})
    assert free.mem_per_node is None


def test_executors_that_size_each_task_get_its_size() -> None:
    """Work Queue and TaskVine take a specification; HTEX and threads refuse one."""
    queue = type("WorkQueueExecutor", (), {})()
    htex = type("HighThroughputExecutor", (), {})()
    assert make_specification([queue], SIZES["a"]) == {"cores": 2, "memory": 3000, "disk": 1}
    assert make_specification([htex], SIZES["a"]) == {}
    assert make_specification([queue, htex], SIZES["a"]) == {}
    assert make_specification([queue], StepSize()) == {}
    assert make_specification([queue], None) == {}


def test_azure_ml_gets_the_smallest_machine_that_is_enough() -> None:
    """A tenth of a machine is its system's; a step that no machine can hold is said."""
    entities = pytest.importorskip("azure.ai.ml.entities")
    kept = entities.JobResourceConfiguration(instance_count=2)
    nodes = {"a": SimpleNamespace(resources=None), "b": SimpleNamespace(resources=kept)}
    nodes["huge"] = SimpleNamespace(resources=None)
    said: list[str] = []
    sizes = {**SIZES, "huge": StepSize(10**9, 1)}
    ask_azure(SimpleNamespace(jobs=nodes), sizes, say=said.append)
    assert nodes["a"].resources.instance_type == "Standard_F2s_v2"
    assert nodes["b"].resources.instance_type == "Standard_F4s_v2"
    assert kept.instance_count == 2
    assert "no common machine" in said[-1]


def test_a_command_by_itself_gets_its_machine_too() -> None:
    """It is a job without steps in azure-ai-ml."""
    make = pytest.importorskip("azure.ai.ml").command
    job = make(command="true", environment="azureml:x:1")
    ask_azure(job, {"a": SIZES["a"]}, say=lambda _: None)
    assert job.resources.instance_type == "Standard_F2s_v2"
