"""The run of a pipeline's step that MLflow did not take at once."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from tests.publish.test_recovery import HEAD

from mlflow_perf.model.document import NodeDocument
from mlflow_perf.publish.step_record import (
    STARTED,
    StepRecord,
    complete,
    keep_end,
    list_recorded,
    provide_run,
    share_run,
)
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.perf_run import PARENT_TAG, PerfRun
from mlflow_perf.tracking.run_handle import RunHandle


def _record(status: str = "FINISHED") -> StepRecord:
    return StepRecord(
        os.environ["MLFLOW_EXPERIMENT_ID"],
        "fit",
        "the-parent",
        {"mlflow_perf.step": "fit"},
        {"rows": 3, "url": "https://u:s3cr3t@host"},
        started=1000.0,
        status=status,
        ended=1060.0,
        end_tags={"mlflow_perf.attempts": "2"},
    )


def test_mlflow_gets_all_of_a_step(store: str, tmp_path: Path) -> None:
    """Run, parameters without passwords, tags, files and end; then there is nothing more to do."""
    step = tmp_path / "fit"
    for folder in ("logs", "code/outputs", "code/logs"):
        (step / folder).mkdir(parents=True)
    (step / "logs" / "std_log.txt").write_text("it ran")
    (step / "code" / "outputs" / "model.txt").write_text("a model")
    _record().keep(step)
    assert list_recorded(tmp_path) == [step]
    client = MlflowClient(store)
    complete(client, step)
    run = client.get_run((step / STARTED).read_text())
    assert (run.info.status, run.info.start_time, run.info.end_time) == (
        "FINISHED", 1000_000, 1060_000,
    )  # fmt: skip
    assert run.data.params["rows"] == "3"
    assert "s3cr3t" not in run.data.params["url"]
    assert run.data.tags[PARENT_TAG] == "the-parent"
    assert run.data.tags["mlflow_perf.attempts"] == "2"
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert files == {"logs", "outputs"}
    assert list_recorded(tmp_path) == []
    complete(client, step)  # nothing is there any more


def test_a_run_that_its_job_made_is_its_run(store: str, tmp_path: Path) -> None:
    """Two runs of one step would be two steps: it is the first one, from the step's begin on."""
    client, record = MlflowClient(store), _record("FAILED")
    tags = {PARENT_TAG: "the-parent", "mlflow_perf.step": "fit"}
    other, made = (
        client.create_run(record.experiment_id, start_time=at, tags=tags).info.run_id
        for at in (1040_000, 1030_000)
    )
    assert provide_run(client, tmp_path / "fit", record) == made
    record.keep(tmp_path / "fit")
    complete(client, tmp_path / "fit")
    run = client.get_run(made)
    assert (run.info.status, run.data.params["rows"]) == ("FAILED", "3")
    assert run.info.run_name == "fit"
    perf_run = PerfRun.from_mlflow(run)
    assert (perf_run.started, perf_run.ended) == (1000.0, 1060.0)
    assert not {PARENT_TAG, "mlflow_perf.step"} & client.get_run(other).data.tags.keys()


def test_a_lost_steps_end_is_kept_beside_its_begin(store: str, tmp_path: Path) -> None:
    """Its runner knows the end only; a step without a run has told its begin."""
    lost = StepRecord(
        _record().experiment_id, "fit", "the-parent", {"mlflow_perf.step": "fit"},
        status="FAILED", ended=1090.0, end_tags={"mlflow_perf.error": "its worker was lost"},
    )  # fmt: skip
    client, step = MlflowClient(store), tmp_path / "fit"
    replace(_record(), status="KILLED", ended=None, end_tags={}).keep(step)
    keep_end(step, lost)
    complete(client, step)
    run = client.get_run((step / STARTED).read_text())
    assert (run.info.status, run.info.start_time, run.info.end_time) == (
        "FAILED", 1000_000, 1090_000,
    )  # fmt: skip
    assert run.data.tags["mlflow_perf.error"] == "its worker was lost"
    keep_end(step, lost)  # of a step with a run, nothing else is kept
    complete(client, step)
    assert client.get_run(run.info.run_id).info.status == "FAILED"


def test_a_damaged_record_is_left_out(store: str, tmp_path: Path) -> None:
    """The disk was full when it was written."""
    for number, text in enumerate(("", "{", "[]", '{"name": "fit"}')):
        step = tmp_path / str(number)
        step.mkdir()
        (step / "record.json").write_text(text)
        complete(MlflowClient(store), step)
        assert not (step / STARTED).exists()


def test_the_journals_of_a_step_share_its_run(store: str, tmp_path: Path) -> None:
    """The first one makes it as the record says; one with a run keeps that."""
    step = tmp_path / "fit"
    first = step / "measured" / "a.journal"
    second = step / "measured" / "attempt-2" / "b.journal"
    second.parent.mkdir(parents=True)

    def share(path: Path, run_id: str | None = None, *, is_left: bool = True) -> RunHandle:
        facts = {"run_id": run_id, "own_run": True, "tracking_uri": store, "left": is_left}
        delivery = Delivery.from_header({**HEAD["delivery"], **facts}, NodeDocument())
        share_run(path, delivery)
        return delivery.run

    assert share(first).run_id is None  # no step's
    (step / STARTED).write_text("")
    assert share(first).run_id is None  # without a record
    _record().keep(step)
    assert share(first, is_left=False).run_id is None  # the step has a store of its own
    made = share(first)
    assert (made.run_id, made.own_run) == ((step / STARTED).read_text(), False)
    assert MlflowClient(store).get_run(str(made.run_id)).info.run_name == "fit"
    assert share(second).run_id == made.run_id
    assert (share(second, "other").run_id, share(second, "other").own_run) == ("other", True)
    (step / "record.json").unlink()  # MLflow has the rest of the step
    assert (share(second).run_id, share(second).own_run) == (made.run_id, False)
    assert share(second, is_left=False).run_id is None


@pytest.mark.usefixtures("store")
def test_a_record_that_cannot_be_kept_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its disk is full: what MLflow did not take is lost."""
    (tmp_path / "fit").write_text("no folder")
    _record().keep(tmp_path / "fit")
    assert "What MLflow did not take of step 'fit' cannot be kept" in caplog.text
