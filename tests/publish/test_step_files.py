"""The files of a step, some of which no store takes."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from mlflow_perf.publish.step_files import upload_files


def test_a_named_pipe_among_its_files_is_left_out(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """MLflow would wait for ever for a writer, and fail for a file that it cannot read."""
    secret = tmp_path / "code" / "outputs" / "deep" / "secret"
    monkeypatch.setattr(os, "access", lambda path, _: path != secret)  # root may read all
    outputs = tmp_path / "code" / "outputs"
    (outputs / "deep").mkdir(parents=True)
    os.mkfifo(outputs / "pipe")
    (outputs / "lost").symlink_to("nothing")
    for name in ("model.txt", "deep/more.txt", "deep/secret"):
        (outputs / name).write_text("a model")
    client = MlflowClient(store)
    run_id = client.create_run(os.environ["MLFLOW_EXPERIMENT_ID"]).info.run_id
    upload_files(client, run_id, tmp_path)
    found = {
        file.path
        for at in ("outputs", "outputs/deep")
        for file in client.list_artifacts(run_id, at)
    }
    assert found == {"outputs/model.txt", "outputs/deep", "outputs/deep/more.txt"}
    assert f"'{secret}' is not readable, and not kept in MLflow." in caplog.text


def test_a_link_in_the_place_of_a_folder_is_not_followed(store: str, tmp_path: Path) -> None:
    """Else whatever lies behind it would be published."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_text("a secret")
    (tmp_path / "logs").symlink_to("elsewhere")
    client = MlflowClient(store)
    run_id = client.create_run(os.environ["MLFLOW_EXPERIMENT_ID"]).info.run_id
    upload_files(client, run_id, tmp_path)
    assert client.list_artifacts(run_id) == []


def test_a_step_may_write_a_file_with_the_name_of_its_log(store: str, tmp_path: Path) -> None:
    """Both are kept, and the log has its name."""
    for name, text in (("logs/std_log.txt", "ours"), ("code/logs/std_log.txt", "theirs")):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "code/logs/more.txt").write_text("more")
    client = MlflowClient(store)
    run_id = client.create_run(os.environ["MLFLOW_EXPERIMENT_ID"]).info.run_id
    upload_files(client, run_id, tmp_path)
    kept = {"std_log.txt": "ours", "own/std_log.txt": "theirs", "more.txt": "more"}
    for name, text in kept.items():
        local = client.download_artifacts(run_id, f"logs/{name}", str(tmp_path))
        assert Path(local).read_text() == text


def test_names_in_the_logs_of_a_step_that_cannot_be_beside_ours(store: str, tmp_path: Path) -> None:
    """A folder with the name of its log, while a file has that of the folder for such files."""
    for name in ("logs/std_log.txt", "code/logs/std_log.txt/x", "code/logs/own", "code/logs/a/b"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    client = MlflowClient(store)
    run_id = client.create_run(os.environ["MLFLOW_EXPERIMENT_ID"]).info.run_id
    upload_files(client, run_id, tmp_path)
    for name in ("std_log.txt", "own-/std_log.txt/x", "own", "a/b"):
        local = client.download_artifacts(run_id, f"logs/{name}", str(tmp_path / "got"))
        assert Path(local).read_text().endswith(name.removeprefix("own-/"))


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux")
def test_a_file_that_cannot_be_read_to_its_end_takes_no_other_with_it(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as one on a bad disk: it opens, and then it cannot be read."""
    outputs = tmp_path / "code" / "outputs"
    outputs.mkdir(parents=True)
    (outputs / "mem").symlink_to("/proc/self/mem")
    (outputs / "z.txt").write_text("kept")
    client = MlflowClient(store)
    run_id = client.create_run(os.environ["MLFLOW_EXPERIMENT_ID"]).info.run_id
    upload_files(client, run_id, tmp_path)
    assert "outputs/z.txt" in [file.path for file in client.list_artifacts(run_id, "outputs")]
    assert "mem' is not kept in MLflow: OSError" in caplog.text


def test_a_file_that_vanishes_takes_no_other_with_it(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that the step left behind removes one while MLflow uploads them."""
    outputs = tmp_path / "code" / "outputs"
    outputs.mkdir(parents=True)
    for name in ("kept", "gone"):
        (outputs / name).write_text(name)
    client = MlflowClient(store)
    run_id = client.create_run(os.environ["MLFLOW_EXPERIMENT_ID"]).info.run_id

    def upload(*_: object) -> None:
        (outputs / "gone").unlink(missing_ok=True)
        raise FileNotFoundError(outputs / "gone")

    monkeypatch.setattr(client, "log_artifacts", upload)
    upload_files(client, run_id, tmp_path)
    assert [file.path for file in client.list_artifacts(run_id, "outputs")] == ["outputs/kept"]
    with pytest.raises(FileNotFoundError):  # not of the step's files
        upload_files(client, run_id, tmp_path)


class AnsweredError(Exception):
    """A server's answer, as `requests` raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status} Client Error")
        self.response = SimpleNamespace(status_code=status)


@pytest.mark.parametrize(
    "refusal",
    [
        AnsweredError(413),
        MlflowException.invalid_parameter_value("no such name"),
        UnicodeEncodeError("utf-8", "x", 0, 1, "surrogates not allowed"),
    ],
)
def test_a_file_that_the_store_refuses_takes_no_other_with_it(
    store: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refusal: Exception,
) -> None:
    """As one that is larger than a proxy lets through; one line names it, and it is done."""
    for name in ("logs/std_log.txt", "code/outputs/a.txt", "code/outputs/large"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("some")
    client = MlflowClient(store)
    run_id = client.create_run(os.environ["MLFLOW_EXPERIMENT_ID"]).info.run_id
    whole, each = client.log_artifacts, client.log_artifact

    def log_artifacts(run_id: str, folder: str, path: str) -> None:
        if path == "outputs":
            raise refusal
        whole(run_id, folder, path)

    def log_artifact(run_id: str, file: str, path: str) -> None:
        if file.endswith("large"):
            raise refusal
        each(run_id, file, path)

    monkeypatch.setattr(client, "log_artifacts", log_artifacts)
    monkeypatch.setattr(client, "log_artifact", log_artifact)
    upload_files(client, run_id, tmp_path)
    found = {file.path for at in ("logs", "outputs") for file in client.list_artifacts(run_id, at)}
    assert found == {"logs/std_log.txt", "outputs/a.txt"}
    assert "large' is not kept in MLflow: " in caplog.text
    assert str(refusal) in caplog.text


@pytest.mark.parametrize("error", [AnsweredError(403), AnsweredError(503), ConnectionError("gone")])
def test_a_store_that_takes_nothing_is_asked_again(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It is away, or forbids all: `recover` sends the files."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "std_log.txt").write_text("some")
    client = MlflowClient(store)

    def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(client, "log_artifacts", refuse)
    monkeypatch.setattr(client, "log_artifact", refuse)
    with pytest.raises(type(error)):
        upload_files(client, "some", tmp_path)
