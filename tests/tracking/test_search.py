"""Search for runs, and reading of their figures in batches."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST
from tests.tracking.samples import NODE, document, log_run

from mlflow_perf.core.format import clean_metric_key
from mlflow_perf.core.json_io import to_json
from mlflow_perf.errors import DocumentError, RunNotFoundError, SettingError
from mlflow_perf.tracking.notices import tell
from mlflow_perf.tracking.perf_run import TAG
from mlflow_perf.tracking.search import (
    find_children,
    find_runs,
    get_run,
    get_runs,
    quote_literal,
    watch,
)


def test_a_run_of_one_node_needs_no_document(client: MlflowClient, experiment: str) -> None:
    """The figures of one node come from the run's metrics; those of several would be the last's."""
    one = log_run(client, experiment, document(NODE))
    two = log_run(client, experiment, document(NODE, NODE))
    runs = get_runs([two, one], documents=False)
    assert [run.document for run in runs] == [None, None]
    assert runs[0].nodes == {}
    assert runs[1].nodes == {0: NODE}


def test_many_runs_come_in_few_requests(
    client: MlflowClient, experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More runs than a handful are searched for together, in the order in which they were named."""
    ids = [log_run(client, experiment, document(NODE)) for _ in range(6)]
    monkeypatch.setattr(MlflowClient, "get_run", lambda *_: pytest.fail("a request per run"))
    assert [run.run_id for run in get_runs(ids[::-1])] == ids[::-1]


@pytest.mark.parametrize("names", [(), ("nowhere",)])
def test_a_missing_workspace_is_called_so(
    client: MlflowClient, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """It is no missing experiment, though MLflow's client finds none there, and no missing list."""

    def refuse(*_: object, **__: object) -> None:
        raise MlflowException("Workspace 'nope' not found", RESOURCE_DOES_NOT_EXIST)

    monkeypatch.setattr(MlflowClient, "search_experiments", refuse)
    with pytest.raises(RunNotFoundError, match=r"cannot be read .* Workspace 'nope' not found"):
        find_runs(experiment_names=names)


def test_runs_are_found_by_component_and_condition(client: MlflowClient, experiment: str) -> None:
    """A search gives only runs with performance data, newest first."""
    old = log_run(client, experiment, document(NODE, component="O'Hara"), component="O'Hara")
    new = log_run(client, experiment, document(NODE, component="O'Hara"), component="O'Hara")
    client.create_run(experiment, tags={"mlflow_perf.component": "O'Hara"})
    client.set_tag(old, "branch", "main")
    assert [r.run_id for r in find_runs("O'Hara")] == [new, old]
    assert [r.run_id for r in find_runs("O'Hara", filter_string="tags.branch = 'main'")] == [old]
    assert [r.run_id for r in find_runs("O'Hara", max_results=1)] == [new]
    with pytest.raises(SettingError, match="cannot search"):
        find_runs(filter_string="this is no condition")
    with pytest.raises(RunNotFoundError, match="no experiment 'nowhere'"):
        find_runs(experiment_names=["nowhere"])


@pytest.mark.parametrize("other", ["test", 'te%t_"ü'])
def test_a_run_is_found_by_each_of_its_components(
    client: MlflowClient, experiment: str, other: str
) -> None:
    """Each component's name finds the run, with the figures of that component alone."""
    name = f"train for {other[:3]}"
    run_id = log_run(client, experiment, document(NODE, component=name), component=name)
    prefix, tag = clean_metric_key(other), to_json([other])
    client.log_metric(run_id, f"{prefix}/duration_sec", 3.0)
    client.set_tag(run_id, "mlflow_perf.components", tag)
    [found] = find_runs(other, documents=False)
    assert (found.run_id, found.component, found.nodes) == (run_id, other, {0: {"duration_sec": 3}})
    [first] = find_runs(name, documents=False)
    assert first.nodes == {0: NODE}
    assert find_runs(other[:2], documents=False) == []


def test_children_come_in_the_order_of_their_start(client: MlflowClient, experiment: str) -> None:
    """A parent's children are its steps; a run without children has none."""
    parent = client.create_run(experiment).info.run_id
    tags = {"mlflow.parentRunId": parent}
    ids = [log_run(client, experiment, document(NODE), tags=tags) for _ in range(2)]
    found = find_children(get_run(parent))
    assert [run.run_id for run in found] == ids
    assert find_children(found[0]) == []


def test_the_steps_of_a_group_inside_take_its_place(client: MlflowClient, experiment: str) -> None:
    """They are named after it, and a circle of runs ends; a group without steps is one itself."""

    def begin(name: str, parent: str | None, **tags: str) -> str:
        own = {f"mlflow_perf.{key}": value for key, value in tags.items()}
        own |= {"mlflow.parentRunId": parent} if parent else {}
        return str(client.create_run(experiment, tags=own, run_name=name).info.run_id)

    outer = begin("outer", None, group="outer")
    inner = begin("a, b", outer, group="a, b")
    begin("empty", outer, pipeline="empty")
    first = {"mlflow.parentRunId": inner, "mlflow_perf.depends_on": ""}
    last = {"mlflow.parentRunId": inner, "mlflow_perf.depends_on": "load"}
    log_run(client, experiment, document(NODE), component="load", tags=first)
    log_run(client, experiment, document(NODE), component="train", tags=last)
    client.set_tag(outer, "mlflow.parentRunId", inner)
    steps = {run.step: run.depends_on for run in find_children(get_run(outer))}
    assert steps == {"empty": None, "a  b/load": None, "a  b/train": ("a  b/load",)}


def test_a_literal_takes_the_quotes_that_it_does_not_contain() -> None:
    """MLflow's search language cannot escape quotes, so a name with both kinds is refused."""
    assert quote_literal("train") == "'train'"
    assert quote_literal("O'Hara") == '"O\'Hara"'
    with pytest.raises(SettingError, match="both kinds of quotes"):
        quote_literal('O\'Hara "Jr"')


def test_a_progress_bar_can_watch_the_runs(client: MlflowClient, experiment: str) -> None:
    """The watcher of the context gets the runs and their number."""
    run_id = log_run(client, experiment, document(NODE))
    counts: list[int] = []

    def count_items(items: Iterable[Any], count: int) -> Iterable[Any]:
        counts.append(count)
        return items

    token = watch.set(count_items)
    try:
        assert get_run(run_id).run_id == run_id
    finally:
        watch.reset(token)
    assert counts == [1]


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("mlflow-artifacts:/far", "its server alone reads it. Set MLFLOW_TRACKING_URI to the"),
        ("s3://bucket/far", "No module named 'absent'"),
    ],
)
def test_artifacts_that_cannot_be_read_here_do_not_hide_the_other_runs(
    client: MlflowClient,
    experiment: str,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    why: str,
) -> None:
    """Those of a server's proxy, or of a cloud without its library, are left out with one line."""
    near = log_run(client, experiment, document(NODE, component=place), component=place)
    monkeypatch.setattr(
        "mlflow.store.artifact.s3_artifact_repo.S3ArtifactRepository.__init__",
        lambda *_, **__: import_module("absent"),
    )
    elsewhere = client.create_experiment(place, artifact_location=place)
    far = [
        client.create_run(elsewhere, tags={f"{TAG}component": place}).info.run_id for _ in range(2)
    ]
    for run_id in far:
        client.log_metric(run_id, "duration_sec", 1.0)
    said: list[str] = []
    token = tell.set(said.append)
    try:
        assert [run.run_id for run in find_runs(place, documents=True)] == [near]
    finally:
        tell.reset(token)
    [line] = said
    assert line.startswith("2 runs are left out, whose artifacts cannot be read here: The folder ")
    assert why in line
    for read in (lambda: get_run(far[0]), lambda: find_runs(place, experiment_names=[place])):
        with pytest.raises(RunNotFoundError, match="cannot be read") as caught:
            read()
        assert why in str(caught.value)


def test_a_damaged_document_does_not_hide_the_runs_before_it(
    client: MlflowClient, experiment: str, tmp_path: Path
) -> None:
    """A search leaves the run out, says which, and reads one more; a request for it fails."""
    old, new, cut = (
        log_run(client, experiment, document(NODE, component="cut"), component="cut")
        for _ in range(3)
    )
    [file] = tmp_path.glob(f"a/{cut}/**/node-0.json")
    file.write_text(file.read_text()[:100])
    said: list[str] = []
    token = tell.set(said.append)
    try:
        assert [run.run_id for run in find_runs("cut")] == [new, old]
        assert [run.run_id for run in find_runs("cut", max_results=1)] == [new]
        assert [run.run_id for run in find_runs(max_results=1)] == [new]
    finally:
        tell.reset(token)
    assert len(said) == 3
    assert said[0].startswith(f"The run {cut} is left out: {file}: This is not a JSON document")
    with pytest.raises(DocumentError, match="not a JSON document"):
        get_run(cut)
    with pytest.raises(DocumentError, match="not a JSON document"):
        get_runs([old, cut])
