"""The same object on Azure ML, against a client that only remembers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlflow_perf.errors import PipelineError, StepFailedError
from mlflow_perf.pipelines.azure import connect_workspace, submit
from mlflow_perf.pipelines.loading import load_job

WritePipeline = Callable[[str], Path]
ONE = """
    @dsl.pipeline(experiment_name="exp", default_compute="cluster")
    def one(rows: int = 3):
        a = make(rows=rows)
"""


class FakeJobs:
    """What an `MLClient` has under `jobs`."""

    def __init__(self, *, status: str = "Completed", refuse: str = "") -> None:
        self.submitted: list[Any] = []
        self.streamed: list[str] = []
        self.status, self.refuse = status, refuse

    def create_or_update(self, job: Any) -> Any:
        if self.refuse:
            raise RuntimeError(self.refuse)
        self.submitted.append(job)
        return SimpleNamespace(name="brave_bean", studio_url="https://studio.example/brave_bean")

    def stream(self, name: str) -> None:
        self.streamed.append(name)

    def get(self, name: str) -> Any:
        return SimpleNamespace(name=name, status=self.status)

    def validate(self, job: Any) -> Any:
        return job._validate()


def _client(**facts: Any) -> Any:
    return SimpleNamespace(jobs=FakeJobs(**facts))


@pytest.fixture
def job(write_pipeline: WritePipeline) -> Any:
    """A real pipeline job."""
    return load_job(str(write_pipeline(ONE)), {"rows": "9"})[0]


def test_the_job_is_submitted_as_it_is(job: Any) -> None:
    """Azure ML gets the same object that runs here, and the command prints its link."""
    client = _client()
    lines: list[str] = []
    assert submit(job, client, say=lines.append) == "brave_bean"
    assert client.jobs.submitted == [job]
    assert client.jobs.streamed == ["brave_bean"]
    assert lines == ["submitted brave_bean: https://studio.example/brave_bean"]


def test_without_waiting_nothing_is_followed(job: Any) -> None:
    """`--no-wait` ends with the submission."""
    client = _client()
    submit(job, client, wait=False, say=lambda _: None)
    assert client.jobs.streamed == []


def test_a_job_that_fails_there_fails_here(job: Any) -> None:
    """A job that does not complete ends with the status of a failed pipeline."""
    with pytest.raises(StepFailedError, match="ended as Failed"):
        submit(job, _client(status="Failed"), say=lambda _: None)


def test_a_refusal_is_passed_on(job: Any) -> None:
    """The message quotes the service."""
    with pytest.raises(PipelineError, match="refuses the pipeline: RuntimeError: no quota"):
        submit(job, _client(refuse="no quota"), say=lambda _: None)


def test_a_job_without_a_compute_is_refused_early(
    write_pipeline: WritePipeline,
) -> None:
    """azure-ai-ml's own validation comes first."""
    body = ONE.replace(', default_compute="cluster"', "")
    client = _client()
    with pytest.raises(PipelineError, match=r"does not validate: .*[Cc]ompute"):
        submit(load_job(str(write_pipeline(body)), {})[0], client, say=lambda _: None)
    assert client.jobs.submitted == []


def test_the_rest_form_of_the_job_holds_all_of_it(job: Any) -> None:
    """What would be sent names the input's value and the step's command, offline."""
    rest = job._to_rest_object().properties
    assert rest.inputs["rows"].value == "9"
    assert set(rest.jobs) == {"a"}


def test_a_workspace_comes_from_the_environment() -> None:
    """Azure's usual variables name the workspace."""
    pytest.importorskip("azure.identity")
    client = connect_workspace(
        {
            "AZURE_SUBSCRIPTION_ID": "sub",
            "AZURE_RESOURCE_GROUP": "group",
            "AZUREML_WORKSPACE_NAME": "space",
        }
    )
    assert (client.subscription_id, client.resource_group_name, client.workspace_name) == (
        "sub", "group", "space",
    )  # fmt: skip


def test_a_workspace_that_nobody_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without config.json and variables the message says what to set."""
    pytest.importorskip("azure.identity")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PipelineError, match=r"config\.json here or above, or set AZURE_SUB"):
        connect_workspace({})


PIPELINES = sorted((Path(__file__).resolve().parents[2] / "pipelines").glob("*.py"))


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_the_shipped_pipelines_validate(path: Path, offline_client: Any) -> None:
    """azure-ai-ml's public validation finds nothing to object to in the pipelines that ship."""
    job, _ = load_job(str(path), {})
    result = offline_client.jobs.validate(job)
    assert result.passed, result.error_messages
