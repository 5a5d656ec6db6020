"""Packages that an extra installs."""

from __future__ import annotations

import pytest

from mlflow_perf.core.extras import needing
from mlflow_perf.errors import MissingDependencyError


def test_a_missing_package_names_its_extra() -> None:
    """The error says what to install, and keeps Python's own error as its cause."""
    with (
        pytest.raises(MissingDependencyError, match=r"mlflow-perf\[spans\]") as caught,
        needing("nowhere", "spans"),
    ):
        import nowhere  # type: ignore[import-not-found]  # noqa: F401
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_other_errors_pass_through() -> None:
    """Only a failed import is taken for a missing package."""
    with pytest.raises(KeyError), needing("nowhere", "spans"):
        raise KeyError("gone")
