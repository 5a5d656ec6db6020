"""No command prints the password of the tracking store's address."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import Result
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

from mlflow_perf.tracking.load import explain_failure


@pytest.mark.parametrize("command", ["show", "compare", "report", "check", "advise", "download"])
def test_an_error_hides_the_password(
    command: str, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Result]
) -> None:
    """Whatever fails at the store, the message names it without its password."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s3cr3t@127.0.0.1:9/")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    runs = ["0" * 32] * (2 if command in ("compare", "check") else 1)
    limit = ["--limit", "duration_sec=+10%"] if command == "check" else []
    result = cli(command, *runs, *limit)
    assert result.exit_code == 2
    assert "s3cr3t" not in result.output
    assert "127.0.0.1:9" in result.output


def test_a_run_that_does_not_exist_is_told_without_the_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message about a server that answered hides the password in its address too."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s3cr3t@127.0.0.1:9/")
    error = MlflowException("no such run", error_code=RESOURCE_DOES_NOT_EXIST)
    message = explain_failure("The run 'x'", error)
    assert "does not exist in the tracking store http://me:" in message
    assert "s3cr3t" not in message
