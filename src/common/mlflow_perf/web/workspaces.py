"""The MLflow workspace of a request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def bind_workspace(name: str) -> Iterator[None]:
    """Let MLflow's store read a workspace in the block; without a name, the request's own.

    The workspace is bound only for the store's own checks: what a user may see in it is asked
    through MLflow's routes, which get its name as their header.

    Args:
        name: The workspace; may be empty.

    Raises:
        mlflow.exceptions.MlflowException: When the name cannot be one of a workspace.
    """
    if not name:
        yield
        return
    from mlflow.utils.workspace_context import (
        clear_server_request_workspace,
        set_server_request_workspace,
    )

    set_server_request_workspace(name)
    try:
        yield
    finally:
        clear_server_request_workspace()
