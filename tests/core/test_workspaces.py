"""The workspace of MLflow in which a thread works."""

from __future__ import annotations

import os
import sys

import pytest

from mlflow_perf.core.background_call import BackgroundCall
from mlflow_perf.core.workspaces import read_workspace, work_in, working_in
from mlflow_perf.errors import SettingError
from mlflow_perf.tracking.mlflow_call import MlflowCall


@pytest.fixture(autouse=True)
def _variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the environment name a workspace, and MLflow have workspaces."""
    pytest.importorskip("mlflow.utils.workspace_context")
    monkeypatch.setenv("MLFLOW_WORKSPACE", "here")


def test_a_workspace_is_that_of_one_thread() -> None:
    """Other threads, and the variable, stay as they are, and so does the thread afterwards."""
    with working_in("there"):
        assert read_workspace() == "there"
        assert BackgroundCall(read_workspace, name="other").result(30) == "here"
        assert os.environ["MLFLOW_WORKSPACE"] == "here"
        with working_in("elsewhere"):
            assert read_workspace() == "elsewhere"
        with working_in(None):
            assert read_workspace() == "there"
        assert read_workspace() == "there"
    assert read_workspace() == "here"


def test_a_job_that_moves_on_does_not_take_us_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workspace is kept though it was the current one when the block began."""
    with working_in("here"):
        monkeypatch.setenv("MLFLOW_WORKSPACE", "later")
        assert read_workspace() == "here"
    assert read_workspace() == "later"


def test_no_workspace_is_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named only where MLflow would take another: servers without workspaces refuse it."""
    with working_in(""):
        assert read_workspace() == "default"
    monkeypatch.delenv("MLFLOW_WORKSPACE")
    with working_in(""):
        assert read_workspace() == ""


def test_before_mlflow_is_imported_the_variable_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read it, or to stay in it, imports nothing."""
    monkeypatch.delitem(sys.modules, "mlflow.utils.workspace_context")
    with working_in("here"):
        assert read_workspace() == "here"
    assert "mlflow.utils.workspace_context" not in sys.modules


def test_an_mlflow_without_workspaces_is_asked_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its servers have one place for all."""
    monkeypatch.setitem(sys.modules, "mlflow.utils.workspace_context", None)
    assert work_in("there") is None
    with working_in("there"):
        pass


def test_a_variable_that_names_no_workspace_hurts_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server refuses it; only what somebody else named is refused here."""
    monkeypatch.setenv("MLFLOW_WORKSPACE", "No Name!")
    assert MlflowCall(read_workspace, name="test").result(30) == "No Name!"
    with pytest.raises(SettingError), working_in("../x"):
        pass
    assert read_workspace() == "No Name!"
