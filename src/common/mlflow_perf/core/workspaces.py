"""The MLflow workspace that a thread works in.

A tracking server of MLflow 3.10 and newer may be divided into workspaces. MLflow keeps the
workspace in a context variable of the thread. Where that is empty, `MLFLOW_WORKSPACE` counts, which
`mlflow.set_workspace` sets, too, for the other threads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mlflow_perf.errors import SettingError

if TYPE_CHECKING:
    from contextvars import Token

VARIABLE = "MLFLOW_WORKSPACE"
_CONTEXT = "mlflow.utils.workspace_context"
_DEFAULT = "default"  # what a server takes where a request names none


def read_workspace() -> str:
    """Return the workspace that MLflow uses in this thread; empty for the server's default."""
    # MLflow may not be imported (yet), be in the middle of that, or have no workspaces.
    read = getattr(sys.modules.get(_CONTEXT), "get_request_workspace", None)
    return str(read() or "") if read else os.environ.get(VARIABLE, "").strip()


@contextmanager
def working_in(name: str | None) -> Iterator[None]:
    """Let MLflow use a workspace in this thread, whatever other threads choose meanwhile.

    Threads that begin in the block do not inherit it, unless they call `work_in`.

    Args:
        name: The workspace; empty for the server's default; None changes nothing.

    Raises:
        SettingError: When the name cannot be one of a workspace.
    """
    token = work_in(name)
    try:
        yield
    finally:
        if token is not None:
            from mlflow.utils.workspace_context import clear_server_request_workspace

            clear_server_request_workspace()
            token.var.reset(token)  # the caller may have one of its own


def work_in(name: str | None) -> Token[str | None] | None:
    """Let MLflow use a workspace in this thread from now on, as `working_in`.

    Returns:
        What takes that back; None where there was nothing to do.

    Raises:
        SettingError: As `working_in`.
    """
    # An equal name is bound, too, because the job may set another variable at any time. That cannot
    # be done for none: a server without workspaces refuses the name of the default one.
    is_same = name == read_workspace()
    if name is None or (is_same and (not name or _CONTEXT not in sys.modules)):
        return None
    try:
        from mlflow.utils.workspace_context import set_server_request_workspace
    except ImportError:  # an older MLflow, which has no workspaces
        return None
    try:
        # `mlflow.set_workspace` would set the variable of the whole process, too.
        return set_server_request_workspace(name or _DEFAULT)
    except Exception as error:
        if is_same:  # MLflow does not check what the variable says; its server will
            return None
        raise SettingError(f"MLflow has no workspace with such a name: {name!r}") from error
