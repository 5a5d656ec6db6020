"""Sums over all runs of a store: by SQL, by MLflow's search, and the same by both."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from sqlalchemy.dialects import postgresql
from tests.tracking.fleet_ways import WAYS, read_sums

from mlflow_perf.tracking import fleet_sql, fleet_store
from mlflow_perf.tracking.bulk_runs import FinishedRun, write_runs
from mlflow_perf.tracking.fleet_sql import build_sums
from mlflow_perf.tracking.fleet_sums import (
    FIGURES,
    GROUPS,
    MONDAY_MS,
    Choice,
    Sums,
    add_up,
    choose_parts,
)

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


@pytest.mark.parametrize("by", GROUPS)
def test_sql_and_search_give_the_same_sums(
    filled: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every grouping; the totals are those of the figures; what nobody logged is None."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", filled)
    found = read_sums(by, monkeypatch, "sqlite")
    assert found == read_sums(by, monkeypatch, "search")
    assert found == read_sums(by, monkeypatch, "other databases")
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
        parts = [replace(one, week=0, part=0) for one in choose_parts(found, part, part)]
        sums = {one.group: one for one in add_up(parts)}
        assert sums == read_sums(by, monkeypatch, "sqlite", **bounds)
    by_week = add_up(replace(one, group=one.week, week=0, part=0) for one in found)
    weeks = read_sums("week", monkeypatch, "sqlite", since_ms=first)
    assert {one.group: one for one in by_week} == weeks


@pytest.mark.parametrize("cpus", [1, 3, 64])
def test_threads_share_the_runs(filled: str, cpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run is in the share of one thread, whatever its id begins with."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", filled)
    monkeypatch.setattr("os.cpu_count", lambda: cpus)
    assert sum(one.runs for one in read_sums("week", monkeypatch, "sqlite").values()) == 8


def test_groups_are_named_by_what_they_are(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workflow by its parent's name, a week by its number; runs without one are a group too."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", filled)
    assert {*read_sums("workflow", monkeypatch, "sqlite")} == {None, "nightly"}
    assert {*read_sums("component", monkeypatch, "sqlite")} == {"c0'", "c1'"}
    assert {*read_sums("user", monkeypatch, "sqlite")} == {"ada"}
    week = int(_WEEK_1 * 1000)
    assert {2900, 2901} == {*read_sums("week", monkeypatch, "sqlite")}
    late = read_sums("week", monkeypatch, "sqlite", since_ms=week, until_ms=week + 7 * 86_400_000)
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


@pytest.mark.parametrize("way", WAYS)
def test_all_components_and_all_nodes_count(
    manifold: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each component's figures; of a node that reported twice the later ones; infinity is none."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", manifold)
    (whole,) = read_sums("experiment", monkeypatch, way).values()
    assert (whole.runs, whole.failed) == (3, 1)
    assert whole.figures["cpu_hours"] == 1.0 + 20.0 + 300.0 + 5000.0
    assert whole.figures["unused_cpu_hours"] == 4.0
    assert whole.figures["cost"] is None
    found = read_sums("component", monkeypatch, way)
    assert {
        name: (one.runs, one.failed, one.figures["cpu_hours"]) for name, one in found.items()
    } == {
        "first": (3, 1, 5001.0),
        "a/b": (1, 1, 20.0),
        "late one": (1, 1, 300.0),
    }
    assert read_sums("week", monkeypatch, way, since_ms=int(_WEEK_1 * 1000) + 1) == {}


_NESTED = {  # name: day, component, CPU hours, name of the run that measured it
    "search": (0, "search", 100.0, None),
    "trial": (1, "trial", 60.0, "search"),
    "late": (9, "trial", 30.0, "search"),
    "fold": (9, "fold", 7.0, "late"),
    "below a silent one": (1, "kept", 1.0, "silent"),
    "below a deleted one": (1, "kept", 2.0, "deleted"),
    "below one of another experiment": (9, "kept", 4.0, "away"),
    "below nobody": (1, "kept", 8.0, "unknown"),
    "below itself": (1, "kept", 16.0, "below itself"),
    "replaced": (1, "kept", 32.0, ""),
}


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return a store with runs inside each other, and the id of the first experiment."""
    folder = tmp_path_factory.mktemp("nested")
    uri = f"sqlite:///{folder}/mlflow.db"
    client = MlflowClient(uri)
    home, away = (client.create_experiment(name, str(folder)) for name in ("home", "away"))
    ids = {"unknown": "0" * 32, "": ""}
    for name, place in (("silent", home), ("deleted", home), ("away", away)):
        ids[name] = client.create_run(place, start_time=int(1000 * _WEEK_1)).info.run_id
    for name in ("deleted", "away"):
        client.set_tag(ids[name], "mlflow_perf.component", "above")
        client.log_metric(ids[name], "run_cpu_hours", 1000.0)
    client.delete_run(ids["deleted"])
    for name, (day, component, hours, _) in _NESTED.items():
        began = _WEEK_1 + day * _DAY
        tags = {"mlflow_perf.component": component, "mlflow.user": component}
        figures = {"run_cpu_hours": hours}
        if name == "trial":
            tags["mlflow_perf.components"] = '["other"]'
            figures["other/run_cpu_hours"] = 64.0
        end = "FAILED" if component == "trial" else "FINISHED"
        write_runs(client, home, [FinishedRun(name, end, began, began + 9, figures, tags=tags)])
        (run,) = client.search_runs([home], f"attributes.run_name = '{name}'")
        ids[name] = run.info.run_id
    for name, (*_, above) in _NESTED.items():
        if above is not None:
            client.set_tag(ids[name], "mlflow_perf.measured_by", ids[above])
    return uri, home


@pytest.mark.parametrize("way", WAYS)
def test_the_same_cpu_time_counts_once(
    nested: tuple[str, str], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run inside another one that counts is a run, but its figures are in the other's."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", nested[0])
    found = read_sums("component", monkeypatch, way)
    hours = {name: (one.runs, one.failed, one.figures["cpu_hours"]) for name, one in found.items()}
    # Another component's figures may be of another time: they count.
    assert hours == {
        "above": (1, 0, 1000.0),
        "search": (1, 0, 100.0),
        "trial": (2, 2, None),
        "other": (1, 1, 64.0),
        "fold": (1, 0, None),
        "kept": (6, 0, 1.0 + 2 + 8 + 16 + 32),
    }
    # Before the second day, and from the eighth on, only a part of the runs are chosen.
    early = read_sums("component", monkeypatch, way, until_ms=int(1000 * (_WEEK_1 + _DAY)))
    assert {name: one.figures["cpu_hours"] for name, one in early.items()} == {
        "above": 1000.0,
        "search": 100.0,
    }
    later = read_sums("component", monkeypatch, way, since_ms=int(1000 * (_WEEK_1 + 8 * _DAY)))
    assert {name: one.figures["cpu_hours"] for name, one in later.items()} == {
        "trial": 30.0,
        "fold": None,
        "kept": 4.0,
    }
    for by in GROUPS:
        assert read_sums(by, monkeypatch, way) == read_sums(by, monkeypatch, "search")


@pytest.mark.parametrize("is_sqlite", [True, False])
def test_a_run_that_may_not_be_read_hides_no_figures(
    nested: tuple[str, str], is_sqlite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sees one experiment alone sees all that its runs used, by SQL and by search."""
    monkeypatch.setattr(fleet_sql, "_is_sqlite", lambda _: is_sqlite)
    client, choice = MlflowClient(nested[0]), Choice("component", [nested[1]])
    found = fleet_sql.query_sums(fleet_store.find_sql_store(client), choice)
    assert {s.group: s for s in found} == {
        s.group: s for s in fleet_store._sum_searched(client, choice)
    }
    assert {s.figures["cpu_hours"] for s in found if s.group == "kept"} == {63.0}


@pytest.mark.parametrize("is_sqlite", [True, False])
def test_moments_divide_runs_inside_each_other(
    nested: tuple[str, str], is_sqlite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's figures count for the parts in which the run above it does not."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", nested[0])
    monkeypatch.setattr(fleet_sql, "_is_sqlite", lambda _: is_sqlite)
    client = MlflowClient(nested[0])
    edges = tuple(int(1000 * (_WEEK_1 + day * _DAY)) for day in (0, 1, 8))
    experiments = [one.experiment_id for one in client.search_experiments()]
    choice = Choice("component", experiments, edges[0], edges_ms=edges)
    found = fleet_sql.query_sums(fleet_store.find_sql_store(client), choice)
    for first in (1, 2, 3):
        for last in range(first, 4):
            bounds = {"since_ms": edges[first - 1]}
            bounds |= {"until_ms": edges[last]} if last < 3 else {}
            parts = [replace(one, week=0, part=0) for one in choose_parts(found, first, last)]
            sums = {one.group: one for one in add_up(parts)}
            assert sums == read_sums("component", monkeypatch, "search", **bounds), (first, last)
