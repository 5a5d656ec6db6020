"""Figures of many runs from the tables of MLflow's store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.web.web_store import Filled

from mlflow_perf.web import table
from mlflow_perf.web.access import Access
from mlflow_perf.web.choice import Choice
from mlflow_perf.web.fields import COLUMNS, read_figure
from mlflow_perf.web.listing import prepare_runs


@pytest.mark.parametrize(
    "sort", ["started", "-started", "name", "component", "-run_job_max_mem_mb", "-run_cpu_hours"]
)
@pytest.mark.parametrize("equal", [{}, {"component": "train"}, {"status": "FINISHED"}])
def test_the_tables_agree_with_mlflows_search(
    client: Any,
    store: Filled,
    sort: str,
    equal: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fast way finds the same runs with the same figures as MLflow's own search.

    So does the fast way with a condition, for which an MLflow of other functions is searched.
    """
    choice = Choice(sort=sort, equal=equal)
    general = replace(
        choice, query="attributes.run_id != 'x' AND tags.`mlflow_perf.component` LIKE '%'"
    )
    experiments = list(store.experiments.values())
    with client.application.test_request_context():
        fast = Access("").runs(experiments, choice).runs
        narrowed = Access("").runs(experiments, general).runs
        monkeypatch.setattr(table, "can_search", lambda _: False)
        slow = Access("").runs(experiments, general).runs
    assert {r.run_id for r in narrowed} == {r.run_id for r in slow}
    # A condition of MLflow's search cannot ask for the workflows of what it finds.
    assert {r.run_id for r in fast} - {r.run_id for r in slow} <= {store.runs["training"]}
    fast = [r for r in fast if r.component]
    keys = {key for column in COLUMNS for key in (column.key, column.instead)}
    assert {r.run_id for r in fast} == {r.run_id for r in slow}
    if sort in ("started", "-started"):
        assert [r.started for r in fast] == [r.started for r in slow]
    if sort.startswith("-run_"):  # a run of one node may have it as the node's only
        for runs in (fast, slow):
            found = [v for r in runs if (v := read_figure(r, sort[1:])) is not None]
            assert found == sorted(found, reverse=True)
    by_id = {run.run_id: run for run in slow}
    for run in fast:
        other = by_id[run.run_id]
        assert run.metrics == {k: v for k, v in other.metrics.items() if k in keys}
        assert (run.name, run.component, run.status) == (other.name, other.component, other.status)


@pytest.mark.parametrize("query", ["", "attributes.run_id != 'x'"])
def test_a_run_of_several_components_is_found_and_sorted_by_each(
    client: Any, store: Filled, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter by a component shows the run with that component's figures, and sorts by them."""
    monkeypatch.setattr(table, "can_search", lambda _: False)  # a condition goes to MLflow's search
    from mlflow import MlflowClient

    mlflow, made = MlflowClient(store.uri), {}
    for name, seconds in (("train", 5.0), ("exam 100%", 9.0), ("other", 7.0)):
        tags = {"mlflow_perf.component": name}
        if name != "exam 100%":
            tags["mlflow_perf.components"] = '["a","exam 100%"]'
        run_id = mlflow.create_run(store.experiments["forecast"], tags=tags).info.run_id
        of_exam = "" if name == "exam 100%" else "exam 100_/"
        mlflow.log_metric(run_id, "run_duration_sec", 1.0)
        mlflow.log_metric(run_id, f"{of_exam}run_duration_sec", seconds)
        made[name] = run_id
    try:
        sort = "run_duration_sec" if not query else "started"
        choice = Choice(sort=sort, equal={"component": "exam 100%"}, query=query)
        with client.application.test_request_context():
            found = Access("").runs(list(store.experiments.values()), choice).runs
        seconds_of = {run.run_id: run.metrics["run_duration_sec"] for run in found}
        assert seconds_of == {made["train"]: 5.0, made["other"]: 7.0, made["exam 100%"]: 9.0}
        assert query or list(seconds_of) == [made["train"], made["other"], made["exam 100%"]]
        assert {run.component for run in found} == {"exam 100%"}
        assert "train, a, exam 100%" in client.get("/perf").text
        experiments, names = list(store.experiments.values()), ["exam 100%", "train"]
        keys = ["run_duration_sec"]
        with client.application.test_request_context():
            newest = Access("").newest_runs(experiments, Choice(limit=2), names, keys)
            for name in names:
                alone = Choice(limit=2, equal={"component": name})
                one = Access("").runs(experiments, alone, keys).runs
                assert [r.run_id for r in newest[name]] == [r.run_id for r in one]
                assert [r.metrics[keys[0]] for r in newest[name]] == [
                    r.metrics[keys[0]] for r in one
                ]
    finally:
        for run_id in made.values():
            mlflow.delete_run(run_id)


def test_a_workflow_that_logged_only_its_duration_has_the_sums_of_its_steps(
    client: Any, store: Filled
) -> None:
    """So does the parent run of an import: how long a workflow took is no sum of its steps."""
    from mlflow import MlflowClient

    mlflow, home = MlflowClient(store.uri), store.experiments["forecast"]
    parent = mlflow.create_run(home, tags={"mlflow_perf.pipeline": "nf"}).info.run_id
    mlflow.log_metric(parent, "duration_sec", 270.0)
    made = [parent]
    for hours in (1.0, 2.0):
        tags = {"mlflow_perf.component": "ALIGN", "mlflow.parentRunId": parent}
        made.append(mlflow.create_run(home, tags=tags).info.run_id)
        mlflow.log_metric(made[-1], "node_cpu_hours", hours)
    try:
        with client.application.test_request_context():
            found = Access("").runs([home], Choice())
        (whole,) = (run for run in prepare_runs(found) if run.run_id == parent)
        assert whole.metrics["run_cpu_hours"] == 3.0
        assert whole.metrics["duration_sec"] == 270.0
    finally:
        for run_id in made:
            mlflow.delete_run(run_id)


@pytest.mark.parametrize("query", ["", "attributes.run_id != 'x'"])
def test_an_imported_workflow_began_with_the_earliest_of_its_jobs(
    client: Any, store: Filled, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later import may add earlier jobs, and MLflow cannot move the start of their parent."""
    monkeypatch.setattr(table, "can_search", lambda _: False)  # a condition goes to MLflow's search
    from mlflow import MlflowClient

    mlflow, home = MlflowClient(store.uri), store.experiments["forecast"]
    tags = {"mlflow_perf.pipeline": "jobs", "mlflow_perf.imported_from": "sacct workflow"}
    start_ms, end_ms = 1_795_000_600_000, 1_795_000_900_000
    parent = mlflow.create_run(home, start_time=start_ms, tags=tags).info.run_id
    mlflow.log_metric(parent, "duration_sec", 900.0)
    mlflow.set_terminated(parent, end_time=end_ms)
    of_step = {"mlflow_perf.component": "fit", "mlflow.parentRunId": parent}
    step = mlflow.create_run(home, tags=of_step).info.run_id
    mlflow.log_metric(step, "node_cpu_hours", 1.0)
    if query:  # which finds no workflows, but what has a component
        mlflow.set_tag(parent, "mlflow_perf.component", "jobs")
    try:
        with client.application.test_request_context():
            found = Access("").runs([home], Choice(query=query))
        (whole,) = (run for run in prepare_runs(found) if run.run_id == parent)
        assert (whole.started, whole.duration_sec) == (1_795_000_000.0, 900.0)
        assert whole.metrics["run_duration_sec"] == 900.0
    finally:
        for run_id in (parent, step):
            mlflow.delete_run(run_id)
