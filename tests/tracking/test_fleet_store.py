"""Sums over all runs of a store: by SQL, by MLflow's search, and the same by both."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from sqlalchemy.dialects import postgresql

from mlflow_perf.tracking import fleet_sql, fleet_store
from mlflow_perf.tracking.bulk_runs import FinishedRun, write_runs
from mlflow_perf.tracking.fleet_sql import build_sums
from mlflow_perf.tracking.fleet_sums import FIGURES, GROUPS, MONDAY_MS, Choice, Sums, add_up

_DAY = 86_400.0
_WEEK_1 = MONDAY_MS / 1000 + 2900 * 7 * _DAY


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a store with runs of known figures, of other tools, deleted, and half written."""
    folder = tmp_path_factory.mktemp("fleet")
    uri = f"sqlite:///{folder}/mlflow.db"
    client = MlflowClient(uri)
    for name, count in (("a", 4), ('b"; DROP TABLE runs', 2)):
        experiment = client.create_experiment(name, artifact_location=str(folder))
        parent = client.create_run(experiment, run_name="nightly", tags={"mlflow.user": "ada"})
        runs = [
            FinishedRun(
                f"run {i}",
                "FAILED" if i == 1 else "FINISHED",
                _WEEK_1 + i * 3.5 * _DAY,
                _WEEK_1 + i * 3.5 * _DAY + 60,
                {"run_cpu_hours": 2.0, "node_cpu_hours": 1.0, "node_unused_cpu_hours": 0.5 + i},
                tags={
                    "mlflow_perf.component": f"c{i % 2}'",
                    "mlflow_perf.status": "KILLED" if i == 2 else "FINISHED",
                    "mlflow.user": "ada",
                    **({"mlflow.parentRunId": parent.info.run_id} if i == 3 else {}),
                },
            )
            for i in range(count)
        ]
        other = FinishedRun("other", "FINISHED", _WEEK_1, _WEEK_1 + 1, {"node_cpu_hours": 9.0})
        half = {"mlflow_perf.component": "c0'", "mlflow.user": "ada"}
        write_runs(
            client,
            experiment,
            [*runs, other, FinishedRun("half", "RUNNING", _WEEK_1, _WEEK_1 + 1, {}, tags=half)],
        )
        found = client.search_runs([experiment], "attributes.run_name = 'run 0'")
        client.log_metric(found[0].info.run_id, "run_gpu_hours", 3.0)
        gone = client.create_run(experiment, tags={"mlflow_perf.component": "gone"})
        client.log_metric(gone.info.run_id, "node_cpu_hours", 100.0)
        client.delete_run(gone.info.run_id)
    return uri


_WAYS = ("sqlite", "other databases", "search")


def _read(by: str, monkeypatch: pytest.MonkeyPatch, way: str, **bounds: int) -> dict[Any, Sums]:
    """Return the sums as one of three ways finds them in the same store."""
    with monkeypatch.context() as patch:
        if way == "search":
            patch.setattr(fleet_store, "find_sql_store", lambda _: None)
        if way == "other databases":
            patch.setattr(fleet_sql, "_is_sqlite", lambda _: False)
        return {sums.group: sums for sums in fleet_store.sum_runs(by, **bounds)}


@pytest.mark.parametrize("by", GROUPS)
def test_sql_and_search_give_the_same_sums(
    filled: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every grouping; the totals are those of the figures; what nobody logged is None."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", filled)
    found = _read(by, monkeypatch, "sqlite")
    assert found == _read(by, monkeypatch, "search")
    assert found == _read(by, monkeypatch, "other databases")
    total = Sums("", 0, 0, dict.fromkeys(FIGURES))
    for sums in found.values():
        total = total.add(sums)
    assert (total.runs, total.failed) == (8, 3)
    assert total.figures["cpu_hours"] == 12.0
    assert total.figures["unused_cpu_hours"] == 0.5 * 6 + (0 + 1 + 2 + 3) + (0 + 1)
    assert total.figures["gpu_hours"] == 6.0
    assert total.figures["unused_gpu_hours"] is None
    assert total.figures["cost"] is None


@pytest.mark.parametrize("is_sqlite", [True, False])
@pytest.mark.parametrize("by", ["component", "workflow"])
def test_moments_divide_the_groups(
    filled: str, by: str, is_sqlite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pass has the sums of each week and of the runs after each moment."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", filled)
    monkeypatch.setattr(fleet_sql, "_is_sqlite", lambda _: is_sqlite)
    client = MlflowClient()
    first, later = int(_WEEK_1 * 1000), int(_WEEK_1 * 1000) + 7 * 86_400_000
    experiments = [one.experiment_id for one in client.search_experiments()]
    choice = Choice(by, experiments, first, edges_ms=(first, later))
    found = fleet_sql.query_sums(fleet_store.find_sql_store(client), choice)
    for part, bounds in ((1, {"since_ms": first, "until_ms": later}), (2, {"since_ms": later})):
        parts = [replace(one, week=0, part=0) for one in found if one.part == part]
        sums = {one.group: one for one in add_up(parts)}
        assert sums == _read(by, monkeypatch, "sqlite", **bounds)
    by_week = add_up(replace(one, group=one.week, week=0, part=0) for one in found)
    weeks = _read("week", monkeypatch, "sqlite", since_ms=first)
    assert {one.group: one for one in by_week} == weeks


@pytest.mark.parametrize("cpus", [1, 3, 64])
def test_threads_share_the_runs(filled: str, cpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run is in the share of one thread, whatever its id begins with."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", filled)
    monkeypatch.setattr("os.cpu_count", lambda: cpus)
    assert sum(one.runs for one in _read("week", monkeypatch, "sqlite").values()) == 8


def test_groups_are_named_by_what_they_are(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workflow by its parent's name, a week by its number; runs without one are a group too."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", filled)
    assert {*_read("workflow", monkeypatch, "sqlite")} == {None, "nightly"}
    assert {*_read("component", monkeypatch, "sqlite")} == {"c0'", "c1'"}
    assert {*_read("user", monkeypatch, "sqlite")} == {"ada"}
    week = int(_WEEK_1 * 1000)
    assert {2900, 2901} == {*_read("week", monkeypatch, "sqlite")}
    late = _read("week", monkeypatch, "sqlite", since_ms=week, until_ms=week + 7 * 86_400_000)
    assert (late[2900].runs, {*late}) == (6, {2900})


def test_a_step_counts_to_a_workflow_that_names_its_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workflow has steps in other experiments if its tags name them and the reader may see it."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = MlflowClient(uri)
    away = client.create_experiment("away")
    tags = {f"mlflow_perf.steps_in.{away}": "true"}
    named = client.create_run("0", run_name="nightly", tags=tags).info.run_id
    silent = client.create_run("0", run_name="other").info.run_id
    for parent, hours in ((named, 1.0), (silent, 2.0)):
        own = {"mlflow_perf.component": "c", "mlflow.parentRunId": parent}
        step = FinishedRun("step", "FINISHED", 1, 2, {"run_cpu_hours": hours}, tags=own)
        write_runs(client, away, [step])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    store = fleet_store.find_sql_store(client)
    for experiments, name in ((["0", away], "nightly"), ([away], named)):
        found = fleet_sql.query_sums(store, Choice("workflow", experiments))
        assert {one.group: one.figures["cpu_hours"] for one in found} == {name: 1.0, silent: 2.0}


def test_other_databases_read_the_metrics_once() -> None:
    """PostgreSQL gets one pass over the metrics for all figures, with every value bound."""
    statement = build_sums(Choice("week", ["1"], 5), {None: ""})
    text = str(statement.compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]
    assert text.count("FROM latest_metrics") == 1
    assert "run_cpu_hours" not in text


@pytest.fixture(scope="module")
def manifold(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a store with a run of three components, and a run of two nodes without a sum."""
    folder = tmp_path_factory.mktemp("manifold")
    uri = f"sqlite:///{folder}/mlflow.db"
    client = MlflowClient(uri)
    experiment = client.create_experiment("m", artifact_location=str(folder))
    names = {"mlflow_perf.component": "first", "mlflow_perf.components": '["a/b", "late one"]'}
    figures = {
        "run_cpu_hours": 1.0,
        "a/b/run_cpu_hours": 20.0,
        "a/b/node_cpu_hours": 7.0,
        "late one/node_cpu_hours": 300.0,
        "late one/node_unused_cpu_hours": 4.0,
        "of_the_job/run_cpu_hours": 1e6,
    }
    several = FinishedRun("several", "FAILED", _WEEK_1, _WEEK_1 + 60, figures, tags=names)
    wide = FinishedRun(
        "wide", "FINISHED", _WEEK_1, _WEEK_1 + 60, {}, tags={"mlflow_perf.component": "first"}
    )
    damaged = {"mlflow_perf.component": "first", "mlflow_perf.components": "[not JSON"}
    broken = FinishedRun("broken", "FINISHED", _WEEK_1, _WEEK_1 + 60, {}, tags=damaged)
    write_runs(client, experiment, [several, wide, broken])
    run_id = client.search_runs([experiment], "attributes.run_name = 'wide'")[0].info.run_id
    for step, value, at in ((0, 9000.0, 5), (0, 2000.0, 6), (1, 3000.0, 7), (0, math.inf, 8)):
        client.log_metric(run_id, "node_cpu_hours", value, step=step, timestamp=at)
    client.log_metric(run_id, "run_cost", math.inf)
    client.log_metric(run_id, "node_unused_cost", math.nan)
    return uri


@pytest.mark.parametrize("way", _WAYS)
def test_all_components_and_all_nodes_count(
    manifold: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each component's figures; of a node that reported twice the later ones; infinity is none."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", manifold)
    (whole,) = _read("experiment", monkeypatch, way).values()
    assert (whole.runs, whole.failed) == (3, 1)
    assert whole.figures["cpu_hours"] == 1.0 + 20.0 + 300.0 + 5000.0
    assert whole.figures["unused_cpu_hours"] == 4.0
    assert whole.figures["cost"] is None
    found = _read("component", monkeypatch, way)
    assert {
        name: (one.runs, one.failed, one.figures["cpu_hours"]) for name, one in found.items()
    } == {
        "first": (3, 1, 5001.0),
        "a/b": (1, 1, 20.0),
        "late one": (1, 1, 300.0),
    }
    assert _read("week", monkeypatch, way, since_ms=int(_WEEK_1 * 1000) + 1) == {}
