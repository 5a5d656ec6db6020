"""Packages that an extra of mlflow-perf installs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mlflow_perf.errors import MissingDependencyError


@contextmanager
def needing(package: str, extra: str) -> Iterator[None]:
    """Let the imports inside name the extra to install if the package is missing.

    Args:
        package: The package, as pip names it.
        extra: The extra of mlflow-perf that installs it.

    Raises:
        MissingDependencyError: When an import inside fails.
    """
    try:
        yield
    except ImportError as error:
        raise MissingDependencyError(package, extra) from error
