"""The figures of each step, collected from its MLflow run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.pipelines import step_table
from mlflow_perf.pipelines.graph import Graph, Step
from mlflow_perf.pipelines.result import Result
from mlflow_perf.pipelines.step_outcome import Outcome
from mlflow_perf.pipelines.step_table import Row, build_rows, log_report
from mlflow_perf.tracking.perf_run import PerfRun

NODE = {"node_used_cpu_hours": 1.0, "node_unused_cpu_hours": 0.5, "total_disk_io_read_mb": 8.0}
FIGURES = {"duration_sec": 1.0, "job_cpu_hours": 0.4}
GRAPH = Graph("g", "g", "e", {"train": Step("train", "c", "x", None, instances=2)})


def _build_row(outcome: Outcome, *nodes: dict[str, float]) -> Row:
    """Return the row of a step whose run has a document with these nodes."""
    documents = (NodeDocument(summary=node, started=100.0 + i) for i, node in enumerate(nodes))
    document = PerfDocument(dict(enumerate(documents)))
    child = PerfRun("train", run_id="child", document=document)
    (row,) = build_rows(GRAPH, Result("parent", "1", steps={"train": outcome}, runs=(child,)))
    return row


def test_rows_add_up_over_nodes() -> None:
    """Hours and traffic are summed over the nodes; memory is that of the node with the most.

    The second one began a second later and took 2 s: 3 s are measured, as `show` says.
    """
    outcome = Outcome("train", "FINISHED", run_id="child", duration_sec=3.0, reported=True)
    nodes = (
        NODE | {"job_max_mem_mb": 10.0, "duration_sec": 2.5},
        NODE | {"job_max_mem_mb": 30.0, "duration_sec": 2.0},
    )
    assert _build_row(outcome, *nodes) == Row(
        "train", "FINISHED", 3.0, 2, 3.0, 2.0, 1.0, 30.0, 16.0, None, reported=True, run_id="child"
    )


def test_a_step_is_charged_its_own_cpu_time() -> None:
    """Beside another step on the same CPUs, a step shows what its own processes used."""
    node = NODE | {"node_cpu_hours": 1.5, "job_cpu_hours": 0.4}
    row = _build_row(Outcome("train", "FINISHED", run_id="child"), node)
    assert row.cpu_hours_used == 0.4
    assert row.cpu_hours_unused == pytest.approx(1.1)


def test_a_skipped_step_has_no_figures() -> None:
    """A step that never ran used nothing, even if its run holds a document."""
    outcome = Outcome("train", "SKIPPED", "not run", "child")
    row = _build_row(outcome, NODE)
    assert row == Row("train", "SKIPPED", 0.0, 2, run_id="child", message="not run")


def test_a_step_lasts_as_long_as_its_run() -> None:
    """The table, `show` and MLflow give one duration; a step without a run has the runner's."""
    child = PerfRun("train", run_id="child", started=10.0, ended=15.5)
    graph = Graph("g", "g", "e", {n: Step(n, n, "x", None) for n in ("train", "lost")})
    result = Result("parent", "1", runs=(child,))
    for name, run_id in (("train", "child"), ("lost", None)):
        result.steps[name] = Outcome(name, "FINISHED", run_id=run_id, duration_sec=5.0)
    rows = build_rows(graph, result)
    assert [row.duration_sec for row in rows] == [5.5, 5.0]


def test_a_step_without_a_run_has_that_of_its_report() -> None:
    """MLflow was away when it began, and back when its report came."""
    child = PerfRun("fit", run_id="late", started=10.0, ended=15.5)
    child = replace(child, tags={"mlflow_perf.step": "train"})
    ended = Outcome("train", "FINISHED", duration_sec=5.0)
    result = Result("parent", "1", steps={"train": ended}, runs=(child,))
    (row,) = build_rows(GRAPH, result)
    assert row.duration_sec == 5.5


def test_a_step_whose_figures_are_not_in_mlflow_has_none() -> None:
    """They are lost, or still in its journal."""
    outcome = Outcome("train", "FAILED", "broke", "other", duration_sec=3.0)
    row = Row("train", "FAILED", 3.0, 2, run_id="other", message="broke")
    assert _build_row(outcome) == row
    result = Result("parent", "1", steps={"train": Outcome("train", "FINISHED", duration_sec=3.0)})
    assert build_rows(GRAPH, result) == [Row("train", "FINISHED", 3.0, 2)]


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_run_that_mlflow_does_not_end_gets_its_report_later(
    monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    """Without its end, the workflow would seem to last as long as the steps that MLflow ended."""
    logged: list[str] = []

    def log(run_id: str, _: object) -> tuple[Any, str]:
        logged.append(run_id)
        return SimpleNamespace(duration_sec=7.0), ""

    monkeypatch.setattr(step_table, "log_workflow", log)
    monkeypatch.setattr(step_table, "get_runs", lambda ids, **_: ids)
    monkeypatch.setattr(step_table, "find_children", lambda *_, **__: [PerfRun("train")])
    store: Any = SimpleNamespace(ask=lambda call, *_, **__: call())
    result = Result("parent", "1", duration_sec=19.0, is_ended=is_ended)
    assert log_report(result, SimpleNamespace(), store) == is_ended  # type: ignore[arg-type] # a double
    assert (logged, result.duration_sec) == ((["parent"], 7.0) if is_ended else ([], 19.0))
    assert len(result.runs) == 1


def test_the_runs_have_figures_where_only_their_files_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store of the artifacts may fail alone; the report is made by `recover`."""

    def find(_: object, *, documents: bool) -> list[PerfRun]:
        if documents:
            raise RunNotFoundError("HTTP 500")
        return [PerfRun("train", run_id="child", metrics=FIGURES)]

    def ask(call: Callable[[], object], *_: object, **__: object) -> object:
        with suppress(RunNotFoundError):
            return call()
        return None

    monkeypatch.setattr(
        step_table, "log_workflow", lambda *_: (SimpleNamespace(duration_sec=7.0), "")
    )
    monkeypatch.setattr(step_table, "get_runs", lambda ids, **_: ids)
    monkeypatch.setattr(step_table, "find_children", find)
    outcome = Outcome("train", "FINISHED", run_id="child")
    result = Result("parent", "1", steps={"train": outcome}, is_ended=True)
    store: Any = SimpleNamespace(ask=ask)
    assert not log_report(result, SimpleNamespace(), store)  # type: ignore[arg-type] # a double
    assert build_rows(GRAPH, result)[0].cpu_hours_used == 0.4
