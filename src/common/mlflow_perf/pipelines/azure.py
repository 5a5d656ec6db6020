"""Submit a pipeline to Azure ML; only this module imports azure-ai-ml and azure-identity."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlflow_perf.core.extras import needing
from mlflow_perf.errors import PipelineError, StepFailedError

# The names that Azure's own tools use come first.
_VARIABLES = (
    ("AZURE_SUBSCRIPTION_ID", "AZUREML_ARM_SUBSCRIPTION"),
    ("AZURE_RESOURCE_GROUP", "AZUREML_ARM_RESOURCEGROUP"),
    ("AZUREML_WORKSPACE_NAME", "AZUREML_ARM_WORKSPACE_NAME", "AZURE_ML_WORKSPACE"),
)

REPLACED = "_replaced"
"""Attribute of a stand-in: the class in whose place it is."""


def find_real(one: Any) -> Any:
    """Return a class of Azure's, also where threads of a script still have its stand-in."""
    return getattr(one, REPLACED, one)


def make_path_input(kind: str, path: Path) -> Any:
    """Return a file or folder as an input of a pipeline.

    Args:
        kind: `uri_file`, `uri_folder` and so on.
        path: Its path.
    """
    from azure.ai.ml import Input

    return Input(type=kind, path=str(path))


def load_definition(kind: str, file: Path) -> Any:
    """Return the `component` or `environment` that a YAML file defines.

    Raises:
        PipelineError: azure-ai-ml cannot read it.
    """
    from azure.ai import ml

    try:
        return getattr(ml, f"load_{kind}")(str(file))
    # azure-ai-ml raises several kinds of exceptions for a file that is not as it should be.
    except Exception as error:
        raise PipelineError(f"{file} is no {kind}: {_describe(error)}") from error


def is_job(value: Any) -> bool:
    """Return whether a value is a job of any kind: what `MLClient.jobs` takes."""
    from azure.ai.ml.entities import Job

    return issubclass(type(value), Job)


def unify_job(job: Any) -> Any:
    """Return a finished job as a `PipelineJob` or a `Command`; a job of another kind unchanged.

    A single command or pipeline has two classes in azure-ai-ml: as a job, and as a node.
    """
    kind = type(job).__name__
    if kind == "CommandJob":
        node = job._to_node({"base_path": job.base_path})  # noqa: SLF001 - it has no public name
        node.name, node.experiment_name = job.name, job.experiment_name
        return node
    return job._to_job() if kind == "Pipeline" else job  # noqa: SLF001 - as above


def connect_workspace(environ: Mapping[str, str] = os.environ) -> Any:
    """Return a client of the workspace that the environment or `config.json` names.

    Raises:
        PipelineError: Neither names one.
        MissingDependencyError: azure-ai-ml or azure-identity is not installed.
    """
    with needing("azure-identity", "azureml"):
        from azure.ai.ml import MLClient
        from azure.core.exceptions import AzureError
        from azure.identity import DefaultAzureCredential
    client, credential = find_real(MLClient), find_real(DefaultAzureCredential)()
    found = [next((environ[n] for n in names if environ.get(n)), "") for names in _VARIABLES]
    if all(found):
        return client(credential, *found)
    try:
        return client.from_config(credential)
    except (AzureError, ValueError, OSError) as error:
        wanted = ", ".join(names[0] for names in _VARIABLES)
        raise PipelineError(
            f"No Azure ML workspace is named: put its config.json here or above, or set {wanted}."
        ) from error


def submit(
    job: Any, client: Any, *, wait: bool = True, say: Callable[[str], object] = print
) -> str:
    """Validate and submit a pipeline job, and return its name.

    Args:
        job: The `PipelineJob`.
        client: An `MLClient`, or an object that behaves like one.
        wait: Whether to follow the job to its end.
        say: Prints a line for the user.

    Raises:
        PipelineError: The job does not validate, or Azure ML refuses it.
        StepFailedError: The job did not complete.
    """
    if validate := getattr(client.jobs, "validate", None):
        result = validate(job)
        if not getattr(result, "passed", True):
            found = "; ".join(f"{k}: {v}" for k, v in result.error_messages.items())
            raise PipelineError(f"The pipeline does not validate: {found}")
    try:
        made = client.jobs.create_or_update(job)
    # Whatever the service answers is its refusal of this job; its own text gives the reason.
    except Exception as error:
        raise PipelineError(f"Azure ML refuses the pipeline: {_describe(error)}") from error
    name = str(made.name)
    say(f"submitted {name}: {getattr(made, 'studio_url', '')}")
    if not wait:
        return name
    try:
        client.jobs.stream(name)
    # As above: several kinds of exceptions report that the job failed.
    except Exception as error:
        text = _describe(error)
        raise StepFailedError(name, f"The Azure ML job {name} failed: {text}") from error
    status = str(getattr(client.jobs.get(name), "status", "Completed"))
    if status != "Completed":
        raise StepFailedError(name, f"The Azure ML job {name} ended as {status}.")
    return name


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
