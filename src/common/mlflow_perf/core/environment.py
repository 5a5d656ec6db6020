"""Changes of the job's environment that never raise into the job."""

from __future__ import annotations

import os

from mlflow_perf.core.handler_errors import is_from_handler


def set_variable(name: str, value: str | None) -> None:
    """Set a variable of this process's environment; None removes it.

    An audit hook of the job may refuse that, with any error. Then it stays as it is.
    """
    try:
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    except Exception as error:
        if is_from_handler(error):
            raise
