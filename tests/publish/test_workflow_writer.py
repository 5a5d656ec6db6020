"""What the pipeline runner writes to MLflow, against a real store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.faults.nursery import Job

from mlflow_perf.errors import SettingError
from mlflow_perf.publish.note import write_workflow_note
from mlflow_perf.publish.workflow_writer import Place, Tracking, make_embedded_place


@pytest.mark.e2e
def test_runs_of_a_pipeline_in_an_embedded_store(tmp_path: Path) -> None:
    """Parent and child, parameters, tags, metrics, files and ends: all read back."""
    from mlflow import MlflowClient

    place = make_embedded_place(tmp_path / "store")
    tracking = Tracking(place)
    experiment = tracking.experiment("work")
    assert tracking.experiment("work") == experiment
    parent = tracking.start(experiment, "whole", params={"rows": 3, "long": "x" * 900})
    child = tracking.start(experiment, "fit", parent=parent, tags={"a": "1"})
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "log.txt").write_text("it ran")
    tracking.artifacts(child, tmp_path / "logs", "logs")
    tracking.text(parent, "{}", "perf/workflow.json")
    tracking.metrics(parent, {"duration_sec": 2.5})
    for text in ("first", "second", "third"):
        tracking.note(parent, partial(write_workflow_note, {"name": text}))
    tracking.end(child, "FAILED", tags={"mlflow_perf.error": "it broke"})

    client = MlflowClient(place.uri)
    run, whole = client.get_run(child), client.get_run(parent)
    assert (run.info.status, run.info.run_name) == ("FAILED", "fit")
    assert run.data.tags["mlflow.parentRunId"] == parent
    assert run.data.tags["mlflow_perf.error"] == "it broke"
    assert whole.data.params == {"rows": "3", "long": "x" * 500}
    assert whole.data.metrics == {"duration_sec": 2.5}
    note = whole.data.tags["mlflow.note.content"]
    assert note.startswith("**third** ")
    assert f"runs/{parent}/artifacts/perf_report.html" in note
    client.set_tag(parent, "mlflow.note.content", "a person's")
    tracking.note(parent, str)
    assert client.get_run(parent).data.tags["mlflow.note.content"] == "a person's"
    assert Path(str(run.info.artifact_uri).removeprefix("file://")).is_relative_to(tmp_path)
    assert [f.path for f in client.list_artifacts(child, "logs")] == ["logs/log.txt"]
    assert [f.path for f in client.list_artifacts(parent, "perf")] == ["perf/workflow.json"]


@pytest.mark.e2e
def test_an_experiment_that_another_pipeline_makes_now_is_used(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of one name that start at once both look before either has made it."""
    from mlflow import MlflowClient

    name, find = f"raced {tmp_path}", MlflowClient.get_experiment_by_name
    asked: list[str] = []

    def find_late(client: MlflowClient, wanted: str) -> object:
        asked.append(wanted)
        return None if len(asked) == 1 else find(client, wanted)

    made = MlflowClient(server).create_experiment(name)
    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", find_late)
    assert Tracking(Place(server)).experiment(name) == made


_PIPELINE = """
import sys
from mlflow_perf.publish.workflow_writer import Place, Tracking

print(Tracking(Place(sys.argv[1])).experiment("e"))
"""


@pytest.mark.e2e
def test_pipelines_that_start_at_once_share_a_new_store(
    python: Callable[..., Job], tmp_path: Path
) -> None:
    """Each would make the database; MLflow fails where two do, and may leave it broken for ever."""
    jobs = [python("-c", _PIPELINE, f"sqlite:///{tmp_path / 'mlflow.db'}") for _ in range(3)]
    codes = [job.wait() for job in jobs]
    assert [(code, job.output) for code, job in zip(codes, jobs, strict=True)] == [
        (0, "1\n")
    ] * len(jobs), [job.errors for job in jobs]


@pytest.mark.e2e
def test_a_run_on_a_server_ends_in_silence(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard output is the command's own: JSON, where that was asked for."""
    from mlflow import MlflowClient

    tracking = Tracking(Place(server))
    run_id = tracking.start(tracking.experiment(f"silent {tmp_path}"), "whole")
    tracking.end(run_id, "FAILED")
    assert capsys.readouterr().out == ""
    assert MlflowClient(server).get_run(run_id).info.status == "FAILED"


@pytest.mark.e2e
def test_a_server_that_is_away_is_said_in_seconds() -> None:
    """The first call fails soon and by name, before anything runs."""
    tracking = Tracking(Place("http://127.0.0.1:9"))
    with pytest.raises(SettingError, match=r"MLflow at http://127\.0\.0\.1:9 cannot be used"):
        tracking.experiment("work")


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("postgresql://me:secret@127.0.0.1:9/db", "nothing listens there"),
        ("foo://me:secret@host/db", "foo"),
        ("http://[bad", "Invalid IPv6"),
        ("sqlite:////dev/null/mlflow.db", "/dev/null"),
    ],
)
def test_a_store_that_cannot_be_used_is_one_line(uri: str, why: str) -> None:
    """Whatever MLflow or a driver raises: the address, the cause, and no password."""
    with pytest.raises(SettingError, match=why) as caught:
        Tracking(Place(uri)).experiment("work")
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_link_signs_nobody_in() -> None:
    """What is printed, and may be sent around, holds no password."""
    link = Place("https://me:secret@host/mlflow/").link("r1", "7")
    assert link.startswith("https://host/mlflow/#/experiments/7/runs/r1")


@pytest.mark.usefixtures("store")
def test_a_place_is_the_default_where_a_script_chose_another(tmp_path: Path) -> None:
    """A pipeline's own `mlflow.set_tracking_uri` does not lead the runner elsewhere."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/of-the-script.db")
    place = Place(f"sqlite:///{tmp_path}/mine.db")
    place.make_default()
    assert mlflow.get_tracking_uri() == place.uri
