"""What needs azure-ai-ml itself: path inputs, and a pipeline submitted to Azure ML.

The only module that imports azure-ai-ml and azure-identity. Imports `errors`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlflow_perf.errors import MissingDependencyError, PipelineError, StepFailedError

__all__ = ["path_input", "submit", "workspace"]

# The names that Azure's own tools use come first.
_SUBSCRIPTION = ("AZURE_SUBSCRIPTION_ID", "AZUREML_ARM_SUBSCRIPTION")
_GROUP = ("AZURE_RESOURCE_GROUP", "AZUREML_ARM_RESOURCEGROUP")
_WORKSPACE = ("AZUREML_WORKSPACE_NAME", "AZUREML_ARM_WORKSPACE_NAME", "AZURE_ML_WORKSPACE")


def path_input(kind: str, path: Path) -> Any:
    """Return a file or folder as an input of a pipeline.

    Args:
        kind: `uri_file`, `uri_folder` and so on.
        path: Where it is.
    """
    from azure.ai.ml import Input

    return Input(type=kind, path=str(path))


def workspace(environ: Mapping[str, str] = os.environ) -> Any:
    """Return a client of the workspace that the environment or `config.json` names.

    Raises:
        PipelineError: Neither names one.
        MissingDependencyError: azure-ai-ml or azure-identity is not installed.
    """
    try:
        from azure.ai.ml import MLClient
        from azure.core.exceptions import AzureError
        from azure.identity import DefaultAzureCredential
    except ImportError as error:
        raise MissingDependencyError("azure-identity", "azureml") from error
    credential = DefaultAzureCredential()
    named = [_first(environ, names) for names in (_SUBSCRIPTION, _GROUP, _WORKSPACE)]
    if all(named):
        return MLClient(credential, *named)
    try:
        return MLClient.from_config(credential)
    except (AzureError, ValueError, OSError) as error:
        wanted = ", ".join(names[0] for names in (_SUBSCRIPTION, _GROUP, _WORKSPACE))
        raise PipelineError(
            f"No Azure ML workspace is named: put its config.json here or above, or set {wanted}."
        ) from error


def submit(
    job: Any, client: Any, *, wait: bool = True, say: Callable[[str], object] = print
) -> str:
    """Submit a pipeline job as it is and return its name.

    Args:
        job: The `PipelineJob`.
        client: An `MLClient`, or what behaves like one.
        wait: Whether to follow the job to its end.
        say: Where lines for people go.

    Raises:
        PipelineError: Azure ML refuses the job.
        StepFailedError: The job did not complete.
    """
    _validate(job, client)
    try:
        made = client.jobs.create_or_update(job)
    # Whatever the service answers is its refusal of this job; its own text says why.
    except Exception as error:
        raise PipelineError(f"Azure ML refuses the pipeline: {_line(error)}") from error
    name = str(made.name)
    say(f"submitted {name}: {getattr(made, 'studio_url', '')}")
    if not wait:
        return name
    try:
        client.jobs.stream(name)
    # As above: a job that fails is reported by an exception of several kinds.
    except Exception as error:
        raise StepFailedError(name, f"The Azure ML job {name} failed: {_line(error)}") from error
    status = str(getattr(client.jobs.get(name), "status", "Completed"))
    if status != "Completed":
        raise StepFailedError(name, f"The Azure ML job {name} ended as {status}.")
    return name


def _validate(job: Any, client: Any) -> None:
    """Raise what azure-ai-ml's own validation finds, before anything is uploaded."""
    validate = getattr(client.jobs, "validate", None)
    if validate is None:
        return
    result = validate(job)
    if not getattr(result, "passed", True):
        found = "; ".join(f"{k}: {v}" for k, v in result.error_messages.items())
        raise PipelineError(f"The pipeline does not validate: {found}")


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
