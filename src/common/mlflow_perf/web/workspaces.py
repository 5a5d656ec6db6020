"""The MLflow workspace of a request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from mlflow_perf.errors import SettingError


def has_workspaces() -> bool:
    """Return whether this server has workspaces."""
    # MLflow before 3.10 has none, and no setting object for them.
    return os.environ.get("MLFLOW_ENABLE_WORKSPACES", "").lower() in ("true", "1")


@contextmanager
def bind_workspace(name: str) -> Iterator[None]:
    """Let MLflow's store read a workspace in the block; without a name, the request's own.

    The workspace is bound only for the store's own checks: what a user may see in it is asked
    through MLflow's routes, which get its name as their header.

    Args:
        name: The workspace; may be empty.

    Raises:
        SettingError: When the server has no workspaces.
        mlflow.exceptions.MlflowException: When the name cannot be one of a workspace.
    """
    if not name:
        yield
        return
    if not has_workspaces():
        raise SettingError("This server has no workspaces: leave `workspace` out of the address.")
    from mlflow.utils.workspace_context import (
        clear_server_request_workspace,
        set_server_request_workspace,
    )

    set_server_request_workspace(name)
    try:
        yield
    finally:
        clear_server_request_workspace()
