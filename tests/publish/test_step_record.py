"""The run of a pipeline's step that MLflow did not take at once."""

from __future__ import annotations

import os
from pathlib import Path

from mlflow import MlflowClient
from tests.publish.test_recovery import HEAD

from mlflow_perf.model.document import NodeDocument
from mlflow_perf.publish.step_record import (
    STARTED,
    StepRecord,
    complete,
    keep_run,
    list_recorded,
    provide_run,
    share_run,
)
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.perf_run import PARENT_TAG


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


def test_a_run_that_the_steps_report_made_is_its_run(store: str, tmp_path: Path) -> None:
    """Two runs of one step would be two steps."""
    client, record = MlflowClient(store), _record("FAILED")
    tags = {PARENT_TAG: "the-parent", "mlflow_perf.step": "fit"}
    made = client.create_run(record.experiment_id, tags=tags).info.run_id
    assert provide_run(client, tmp_path / "fit", record) == made
    record.keep(tmp_path / "fit")
    complete(client, tmp_path / "fit")
    run = client.get_run(made)
    assert (run.info.status, run.data.params["rows"]) == ("FAILED", "3")


def test_a_damaged_record_is_left_out(store: str, tmp_path: Path) -> None:
    """The disk was full when it was written."""
    for number, text in enumerate(("", "{", "[]", '{"name": "fit"}')):
        step = tmp_path / str(number)
        step.mkdir()
        (step / "record.json").write_text(text)
        complete(MlflowClient(store), step)
        assert not (step / STARTED).exists()


def test_the_attempts_of_a_step_share_its_run(tmp_path: Path) -> None:
    """The first journal that makes a run makes it for all; one with a run keeps that."""
    step = tmp_path / "fit"
    first = step / "measured" / "a.journal"
    second = step / "measured" / "attempt-2" / "b.journal"
    second.parent.mkdir(parents=True)
    (step / STARTED).write_text("")

    def read(**facts: object) -> Delivery:
        header = {**HEAD["delivery"], "run_id": None, "own_run": True, **facts}
        return Delivery.from_header(header, NodeDocument())

    share_run(first, delivery := read())
    assert delivery.run.run_id is None
    keep_run(first, "new")
    keep_run(second, "newer")
    share_run(second, delivery)
    assert (str(delivery.run.run_id), delivery.run.own_run) == ("new", False)
    share_run(second, delivery := read(run_id="other"))
    assert (str(delivery.run.run_id), delivery.run.own_run) == ("other", True)
    share_run(tmp_path / "state" / "c.journal", delivery := read())
    keep_run(tmp_path / "state" / "c.journal", "new")
    assert delivery.run.run_id is None
