"""The path below which the MLflow server serves everything."""

from __future__ import annotations

import os

# Private to MLflow: `mlflow server` sets it for its workers.
_STATIC_PREFIX = "_MLFLOW_STATIC_PREFIX"


def read_static_prefix() -> str:
    """Return the server's `--static-prefix` without a trailing slash; usually empty."""
    return os.environ.get(_STATIC_PREFIX, "").rstrip("/")
