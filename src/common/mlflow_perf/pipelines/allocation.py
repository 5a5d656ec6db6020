"""Ask schedulers and services for the sizes of steps: Slurm, Work Queue, TaskVine, Azure ML."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mlflow_perf.analysis.resource_lines import find_azure_size
from mlflow_perf.analysis.rightsize import RightSize
from mlflow_perf.core.format import format_count
from mlflow_perf.pipelines.step_sizes import StepSize

_BY_TASK = ("WorkQueueExecutor", "TaskVineExecutor")
_DISK_MB = 1


def ask_providers(executors: Iterable[Any], sizes: Mapping[str, StepSize]) -> None:
    """Make each provider's allocation large enough for the largest step, unless it names a size.

    Parsl's provider for Slurm asks for whole GB (`--mem`) and cores per node.

    Args:
        executors: The executors of a Parsl configuration.
        sizes: Size of each step.
    """
    if not sizes or any(s.memory_mb is None for s in sizes.values()):
        return  # a step of which nothing is known may need what the cluster gives by default
    wanted = {
        "mem_per_node": math.ceil(max(s.memory_mb or 0 for s in sizes.values()) / 1024),
        "cores_per_node": max(s.cpus or 1 for s in sizes.values()),
    }
    for executor in executors:
        provider: Any = getattr(executor, "provider", None)
        for name, value in wanted.items():
            if getattr(provider, name, 0) is None:
                setattr(provider, name, value)


def make_specification(executors: Iterable[Any], size: StepSize | None) -> dict[str, Any]:
    """Return Parsl's resource specification of a step; empty where the executor takes none.

    HTEX and threads refuse one: there the step itself waits for its share of the machine.

    Args:
        executors: The executors that may run the step.
        size: Its size.
    """
    takes = [type(executor).__name__ in _BY_TASK for executor in executors]
    if size is None or size.memory_mb is None or not takes or not all(takes):
        return {}
    return {"cores": size.cpus or 1, "memory": size.memory_mb, "disk": _DISK_MB}


def ask_azure(job: Any, sizes: Mapping[str, StepSize], *, say: Callable[[str], object]) -> None:
    """Set the instance type of each step of an Azure ML job.

    Azure ML chooses the machine of a step by its type on serverless compute and on Kubernetes; a
    cluster has one type, and refuses none.

    Args:
        job: The `PipelineJob`, or a command by itself, which is its only step.
        sizes: Size of each step, by the name of its node.
        say: Prints a line for the user.
    """
    from azure.ai.ml.entities import JobResourceConfiguration

    for name, node in (job.jobs or dict.fromkeys(sizes, job)).items():
        size = sizes.get(name)
        if size is None or size.memory_mb is None:
            continue
        machine = find_azure_size(RightSize(size.cpus, size.memory_mb, 1, 0))
        if machine is None:
            say(f"step {name}: no common machine of Azure has {size.memory_mb:,} MB.")
            continue
        if node.resources is None:
            node.resources = JobResourceConfiguration()
        if isinstance(node.resources, dict):
            node.resources["instance_type"] = machine.name
        else:
            node.resources.instance_type = machine.name
        cpus = format_count(size.cpus or 1, "CPU")
        say(f"step {name}: {machine.name} for {size.memory_mb:,} MB and {cpus}")
