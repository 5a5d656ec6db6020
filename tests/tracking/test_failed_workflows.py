"""A workflow that failed counts once: as itself, or as the step that failed."""

from __future__ import annotations

import pytest
from mlflow import MlflowClient
from tests.tracking.fleet_ways import WAYS, read_sums

from mlflow_perf.tracking import fleet_sql, fleet_store
from mlflow_perf.tracking.fleet_sums import (
    FIGURES,
    GROUPS,
    MONDAY_MS,
    WEEK_MS,
    Choice,
    choose_parts,
)
from mlflow_perf.tracking.perf_run import GROUP_TAG, PARENT_TAG, PIPELINE_TAG, STEPS_TAG

_WEEK, _DAY_MS = 2900, 86_400_000
_BEGAN = MONDAY_MS + _WEEK * WEEK_MS
_STEP = "mlflow_perf.component"
_RUNS = (  # name, parent, status, tag, day; "away" is another experiment
    ("outside", "", "FAILED", GROUP_TAG, 0),
    ("fine step", "outside", "FINISHED", _STEP, 0),
    ("of a step", "", "FAILED", GROUP_TAG, 0),
    ("bad step", "of a step", "KILLED", _STEP, 0),
    ("of a run without a report", "", "FAILED", GROUP_TAG, 0),
    ("silent", "of a run without a report", "FAILED", "x", 0),
    ("around", "", "FAILED", PIPELINE_TAG, 0),
    ("inside", "around", "FAILED", GROUP_TAG, 0),
    ("stopped", "", "KILLED", PIPELINE_TAG, 0),
    ("of a step that never ran", "", "FAILED", PIPELINE_TAG, 0),
    ("unrun", "of a step that never ran", "KILLED", _STEP, 0),
    ("of a late step", "", "FAILED", GROUP_TAG, 0),
    ("late step", "of a late step", "FAILED", _STEP, 8),
    ("of a step elsewhere", "", "FAILED", GROUP_TAG, 0),
    ("away", "of a step elsewhere", "FAILED", _STEP, 0),
    ("in spite of a foreign run", "", "FAILED", GROUP_TAG, 8),
    ("away", "in spite of a foreign run", "FAILED", _STEP, 8),
    ("fine", "", "FINISHED", GROUP_TAG, 0),
    ("deleted", "", "FAILED", GROUP_TAG, 0),
)
_COUNTED = {"outside", "of a run without a report", "inside", "stopped", "of a step that never ran"}


@pytest.fixture(scope="module")
def flows(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a store with these runs."""
    folder = tmp_path_factory.mktemp("flows")
    uri = f"sqlite:///{folder}/mlflow.db"
    client = MlflowClient(uri)
    home, away = (client.create_experiment(name, str(folder)) for name in ("home", "away"))
    ids = {"": ""}
    for name, parent, status, tag, day in _RUNS:
        tags = {
            tag: "step" if tag == _STEP else name,
            "mlflow.user": "ada",
            PARENT_TAG: ids[parent],
        }
        if name == "unrun":
            tags["mlflow_perf.status"] = "SKIPPED"
        if name == "of a step elsewhere":
            tags[f"{STEPS_TAG}{away}"] = "true"
        place, began = away if name == "away" else home, _BEGAN + day * _DAY_MS
        run_id = client.create_run(place, began, tags, name).info.run_id
        client.log_metric(run_id, "run_cpu_hours", 1.0)
        client.set_terminated(run_id, status)
        ids[name] = run_id
    client.delete_run(ids["deleted"])
    return uri


@pytest.mark.parametrize("way", WAYS)
def test_a_workflow_counts_if_it_failed_and_no_step_that_counts_did(
    flows: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its figures are the sums of its steps', which count already."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", flows)
    found = read_sums("component", monkeypatch, way)
    counts = {name: (one.runs, one.failed) for name, one in found.items()}
    assert counts == {"step": (6, 4), None: (len(_COUNTED) + 1,) * 2}
    assert found[None].figures == dict.fromkeys(FIGURES)
    assert found["step"].figures["cpu_hours"] == 6.0
    by_flow = read_sums("workflow", monkeypatch, way)
    assert (by_flow["outside"].runs, by_flow["outside"].failed) == (2, 1)
    assert {name for name, one in by_flow.items() if one.failed == 1} > _COUNTED


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("by", [by for by in GROUPS if by != "workflow"])
def test_every_way_counts_the_same_failures(
    flows: str, by: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every grouping, and where the time leaves out the step that failed."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", flows)
    assert read_sums(by, monkeypatch, way) == read_sums(by, monkeypatch, "sqlite")
    until = _BEGAN + _DAY_MS
    early = read_sums(by, monkeypatch, way, until_ms=until)
    assert early == read_sums(by, monkeypatch, "sqlite", until_ms=until)
    assert sum(one.failed for one in early.values()) == len(_COUNTED) + 2


def test_moments_divide_failed_workflows(flows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand in the week and the part in which they started."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", flows)
    client = MlflowClient()
    places = [one.experiment_id for one in client.search_experiments()]
    edges = (_BEGAN, _BEGAN + _DAY_MS)
    choice = Choice("component", places, _BEGAN, edges_ms=edges)
    found = fleet_sql.query_sums(fleet_store.find_sql_store(client), choice)
    parts = [
        (one.week, part, one.failed)
        for part in (1, 2)
        for one in choose_parts(found, part, part)
        if one.group is None
    ]
    assert parts == [(_WEEK, 1, len(_COUNTED)), (_WEEK + 1, 2, 1)]
