"""The cell magic, in a real IPython shell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mlflow import MlflowClient

import mlflow_perf
from mlflow_perf.session.cell_magic import is_notebook

interactive = pytest.importorskip("IPython.core.interactiveshell")


@pytest.fixture
def shell(store: str) -> Iterator[Any]:
    """A shell with our extension."""
    shell = interactive.InteractiveShell.instance()
    mlflow_perf.load_ipython_extension(shell)
    yield shell
    interactive.InteractiveShell.clear_instance()


def find_run(name: str) -> Any:
    """Return the run of a component."""
    found = MlflowClient().search_runs(
        [e.experiment_id for e in MlflowClient().search_experiments()],
        f"tags.`mlflow_perf.component` = '{name}'",
    )
    return found[0]


def test_a_cell_is_reported_and_shows_its_value(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its names stay in the notebook, and its last expression is shown."""
    result = shell.run_cell("%%mlflow_perf fit\ntotal = sum(range(10))\ntotal + 1")
    assert result.success
    assert shell.user_ns["total"] == 45
    assert "46" in capsys.readouterr().out
    assert find_run("fit").info.status == "FINISHED"
    assert is_notebook()


def test_a_cell_that_fails_fails_the_notebook(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is shown once, by the shell; the run is FAILED."""
    result = shell.run_cell("%%mlflow_perf broken\n1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert find_run("broken").info.status == "FAILED"
