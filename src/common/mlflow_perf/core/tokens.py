"""Random names. A job may have seeded those of `secrets` and `uuid`, and must not miss any."""

from __future__ import annotations

from mlflow_perf.core.originals import os


def make_token(size: int) -> str:
    """Return random hexadecimal digits, two for each of `size` bytes."""
    return os.urandom(size).hex()
