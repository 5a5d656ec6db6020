"""The facts and figures of one run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from tests.tracking.samples import NODE, document, log_run

from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.perf_run import STEPS_TAG, PerfRun
from mlflow_perf.tracking.search import get_run


def test_what_a_run_says_of_itself(client: MlflowClient, experiment: str) -> None:
    """Component, step, dependencies, parent and figures come with the run."""
    tags = {
        "mlflow.parentRunId": "p",
        "mlflow_perf.step": "fit",
        "mlflow_perf.depends_on": "prepare, split",
    }
    run = get_run(log_run(client, experiment, document(NODE, NODE), tags=tags))
    assert (run.component, run.step, run.parent_id) == ("train", "fit", "p")
    assert run.depends_on == ("prepare", "split")
    assert run.figures["run_node_count"] == 2
    assert run.node_count == 2
    assert run.status == "FINISHED"


def test_a_deleted_run_is_named_as_such(client: MlflowClient, experiment: str) -> None:
    """MLflow still returns a deleted run by its id: what is said of it says so too."""
    run_id = log_run(client, experiment, document(NODE))
    client.delete_run(run_id)
    assert get_run(run_id).label.endswith(f"({run_id[:8]}, deleted)")


@pytest.mark.parametrize(
    ("word", "advice", "shown"),
    [
        ("balanced", "The block took 510 ms: too short to say what held it back.", "too short"),
        ("balanced", "No single resource held the job back.", "balanced"),
        ("cpu", "Steps are too short.", "cpu"),
    ],
)
def test_a_block_below_a_second_is_too_short_everywhere(word: str, advice: str, shown: str) -> None:
    """Its tag says `balanced`; people read on each page that there is no verdict."""
    tags = {"mlflow_perf.bottleneck": word, "mlflow_perf.advice": advice}
    assert PerfRun("a", tags=tags).verdict == shown


@pytest.mark.parametrize("statuses", [("FINISHED", "FAILED"), ("FAILED", "FINISHED")])
def test_a_folder_is_as_bad_as_its_worst_node(tmp_path: Path, statuses: tuple[str, str]) -> None:
    """A job of which one node failed has failed, whichever node it was: a gate must not pass it."""
    for index, status in enumerate(statuses):
        node = NodeDocument({"index": index}, status=status, summary={"duration_sec": 1.0})
        PerfDocument({index: node}).save(tmp_path / f"node-{index}.json")
    assert get_run(tmp_path).status == "FAILED"


def test_a_run_of_a_document_spans_its_nodes() -> None:
    """A run begins with its first node and ends with its last."""
    nodes = {
        0: NodeDocument(component="train", run_id="r", started=100.0, duration_sec=5.0),
        1: NodeDocument(started=90.0, duration_sec=60.0),
        2: NodeDocument(),
    }
    run = PerfRun.from_document("file.json", PerfDocument(nodes))
    assert (run.started, run.ended, run.duration_sec) == (90.0, 150.0, 60.0)
    assert (run.label, run.run_id, run.step) == ("file.json", "r", "train")
    assert run.has_figures
    assert PerfRun("still going", started=90.0).duration_sec is None


@pytest.mark.parametrize(
    ("home", "names", "places"),
    [("1", ["12", "x", "3"], ["1", "12", "3"]), ("a-1", ["b-2", "3"], ["a-1", "b-2"])],
)
def test_an_experiment_that_no_store_can_have_holds_no_steps(
    home: str, names: list[str], places: list[str]
) -> None:
    """Anybody who may write the run's tags can name one; a search in it would fail."""
    run = PerfRun("r", experiment_id=home, tags={f"{STEPS_TAG}{name}": "true" for name in names})
    assert run.step_experiments == places


def test_a_run_without_an_end_says_what_to_do_if_it_was_killed() -> None:
    """The store does not know a killed job from a long one; the age of its newest metric hints."""
    run = PerfRun("train (1234)", status="RUNNING", tags={"mlflow_perf.hostname": "node7"})
    then = "If its process was killed, `mlflow-perf recover` on node7 stores what it left."
    first = "The run train (1234) is RUNNING: its report is logged at the end."
    assert run.explain_missing_end() == f"{first} {then}"
    seen = replace(run, seen=1000.0)
    assert seen.explain_missing_end(1720.0) == f"{first} Its last metric came 12 min ago. {then}"
    assert replace(seen, tags={}).explain_missing_end() == first  # it has no journal of ours


def test_a_running_run_with_curves_says_that_they_are_there() -> None:
    """With `live=True` only the rest of the report comes at the end."""
    run = PerfRun("train (1234)", status="RUNNING", metrics={"system/cpu_utilization": 5.0})
    first = "The run train (1234) is RUNNING: its curves so far are among its metrics (system/…), "
    assert run.explain_missing_end() == f"{first}the rest of its report is logged at the end."


def test_the_newest_metric_is_a_sign_of_life(client: MlflowClient, experiment: str) -> None:
    """Also one of the job's own, such as a loss."""
    run_id = client.create_run(experiment).info.run_id
    assert get_run(run_id).seen is None
    for key, at_ms in (("loss", 7000), ("accuracy", 5000)):
        client.log_metric(run_id, key, 1.0, timestamp=at_ms)
    assert get_run(run_id).seen == 7.0


def test_figures_without_a_document_are_the_metrics() -> None:
    """Metrics of several nodes are the last node's, so they count for a run of one node only."""
    metrics = {**NODE, "run_cpu_hours": 1.0, "system/cpu": 5.0}
    one = PerfRun("one", metrics=metrics, tags={"mlflow_perf.component": "train"})
    assert one.nodes == {0: NODE}
    assert one.figures == {"run_cpu_hours": 1.0}
    assert one.has_figures
    several = PerfRun("several", metrics={**metrics, "run_node_count": 2.0})
    assert (several.nodes, several.node_count, several.has_figures) == ({}, 2, False)


@pytest.mark.parametrize(
    ("reports", "of_run", "shown"),
    [
        (("FINISHED", "FAILED"), "FAILED", ["FINISHED", "FAILED"]),
        (("FAILED", "FINISHED"), "FAILED", ["FAILED", "FINISHED"]),
        (("FAILED", "FAILED"), "FAILED", ["FAILED", "FAILED"]),
        (("FINISHED", "FINISHED"), "FAILED", ["FAILED", "FINISHED"]),
    ],
)
def test_each_component_ended_as_its_own_report_says(
    reports: tuple[str, str], of_run: str, shown: list[str]
) -> None:
    """The run is as bad as its worst report; else the first one has its status."""
    first, other = (
        PerfDocument(
            {0: NodeDocument(component=name, status=status, started=9.0, duration_sec=1.0)}
        )
        for name, status in zip("ab", reports, strict=True)
    )
    first.components["b"] = other
    run = PerfRun("run", component="a", status=of_run, started=1.0, ended=20.0, document=first)
    assert [part.status for part in run.split()] == shown
    assert [part.ended for part in run.split()] == [10.0, 10.0]
    assert replace(run, document=replace(first, components={})).split()[0].status == of_run
