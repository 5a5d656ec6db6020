"""A run of MLflow with more children and traces than a search gives at once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
from mlflow.entities import Run, RunData, RunInfo, RunTag

from mlflow_perf import spans
from mlflow_perf.errors import RunNotFoundError


class _Page(list[Any]):
    """One page, and the token of the next."""

    def __init__(self, items: list[Any], at: int) -> None:
        super().__init__(items[at : at + 2])
        self.token = str(at + 2) if at + 2 < len(items) else None


def _run(run_id: str, parent: str | None = None) -> Run:
    info = RunInfo(
        run_id, "1", "me", "FINISHED", start_time=1, end_time=2, lifecycle_stage="active",
        run_name=run_id,
    )  # fmt: skip
    return Run(info, RunData(tags=[RunTag("mlflow.parentRunId", parent)] if parent else []))


def _trace(number: int) -> Any:
    info = SimpleNamespace(
        trace_id=f"t{number}", execution_duration=1, request_time=1, state=SimpleNamespace()
    )
    return SimpleNamespace(info=info, data=SimpleNamespace(spans=[]))


class _Client:
    """A parent with five children, which has five traces; two come at a time."""

    def get_run(self, run_id: str) -> Any:
        run = _run(run_id)
        run.data.tags["mlflow_perf.steps_in.2"] = "true"
        return run

    def search_runs(
        self,
        experiments: list[str],
        query: str,
        *,
        max_results: int,
        page_token: str | None = None,
    ) -> _Page:
        is_parent = "'parent'" in query
        assert experiments == (["1", "2"] if is_parent else ["1"])
        children = [_run(f"c{n}", "parent") for n in range(5)] if is_parent else []
        return _Page(children, int(page_token or 0))


class _NewClient(_Client):
    def search_traces(
        self, *, locations: list[str], run_id: str, max_results: int, page_token: str | None = None
    ) -> _Page:
        found = [_trace(n) for n in range(5)] if run_id == "parent" and locations == ["1"] else []
        return _Page(found, int(page_token or 0))


class _OldClient(_Client):
    def search_traces(
        self,
        experiment_ids: list[str],
        *,
        run_id: str,
        max_results: int,
        page_token: str | None = None,
    ) -> _Page:
        found = [_trace(n) for n in range(5)] if run_id == "parent" else []
        return _Page(found if experiment_ids == ["1"] else [], int(page_token or 0))


@pytest.mark.parametrize("client", [_NewClient, _OldClient])
def test_every_page_of_children_and_traces_is_imported(
    client: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No page is left out silently, whatever the parameter of this MLflow version is called."""

    def load(run_id: str) -> Any:
        raise RunNotFoundError(run_id)

    monkeypatch.setattr(mlflow, "MlflowClient", client)
    # Not the database of the default, which is not there.
    monkeypatch.setattr(mlflow, "get_tracking_uri", tmp_path.as_uri)
    monkeypatch.setattr("mlflow_perf.tracking.load.load", load)
    spans.import_sources("runs:/parent", tmp_path / "db")
    counts = {row["type"]: row["spans"] for row in spans.types(tmp_path / "db")}
    assert counts == {"mlflow.run": 6, "mlflow.trace": 5}
