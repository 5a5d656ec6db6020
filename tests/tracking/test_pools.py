"""Pools that ask MLflow for their caller."""

from __future__ import annotations

import pytest

from mlflow_perf.core.workspaces import read_workspace, working_in
from mlflow_perf.tracking.pools import open_pool


def test_the_threads_of_a_pool_work_in_the_workspace_of_the_caller() -> None:
    """MLflow itself would ask the default one for the steps that `recover` looks for."""
    pytest.importorskip("mlflow.utils.workspace_context")
    with working_in("there"), open_pool(2) as pool:
        assert set(pool.map(lambda _: read_workspace(), range(8))) == {"there"}
    assert read_workspace() == ""
