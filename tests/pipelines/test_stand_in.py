"""What a script gets for Azure ML's client."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.loading import load_job, load_jobs

WritePipeline = Callable[[str], Path]


SUBMITS = """
    import sys
    from azure.ai.ml import MLClient
    from azure.ai.ml.entities import AmlCompute, Data, Environment
    from azure.identity import DefaultAzureCredential

    @dsl.pipeline()
    def one(rows: int, folder):
        a = make(rows=rows, folder=folder)

    def main(rows):
        credential = DefaultAzureCredential()
        credential.get_token("https://management.azure.com/.default")
        client = MLClient(credential, "subscription", "group", "workspace")
        client.compute.get("cpu-cluster")
        client.compute.begin_create_or_update(AmlCompute(name="small")).result()
        asset = client.data.create_or_update(Data(name="raw", path=str(HERE), type="uri_folder"))
        environment = client.environments.create_or_update(Environment(name="e", image="ubuntu"))
        job = one(rows=rows, folder=Input(type="uri_folder", path=f"azureml:raw:{asset.version}"))
        made = client.jobs.create_or_update(job, experiment_name="mine")
        client.jobs.stream(made.name)
        assert client.jobs.get(made.name).status == "Completed"
        client.online_endpoints.begin_create_or_update("endpoint").result()
        raise SystemExit("not reached")

    if __name__ == "__main__":
        main(int(sys.argv[1]))
"""


CHANGES = """
    from azure.ai.ml import MLClient, command

    client = MLClient(None, "subscription", "group", "workspace")
    code = HERE / "code"
    code.mkdir()
    (code / "link").symlink_to("nothing")
    for number in ("one", "two"):
        (code / "number.txt").write_text(number)
        step = command(code=str(code), command="cat number.txt", environment="azureml:e@latest")
        client.jobs.create_or_update(step)
    (code / "link").unlink()
    (code / "number.txt").unlink()
    code.rmdir()
    raise ValueError("oh")
"""


def test_each_job_has_the_code_that_it_was_submitted_with(
    write_pipeline: WritePipeline, tmp_path: Path
) -> None:
    """A script writes its settings for the next one in the same place, removes them, and fails."""
    from mlflow_perf.pipelines.read_graph import read_graph
    from mlflow_perf.pipelines.sources import Sources

    folders = iter([tmp_path / "first", tmp_path / "second"])
    said: list[str] = []
    sources = Sources(make_folder=lambda: next(folders), say=said.append)
    path = write_pipeline(CHANGES)
    jobs, _ = load_jobs(str(path), {}, sources=sources)
    steps = [read_graph(job, source=path, sources=sources).steps.values() for job in jobs]
    codes = [step.code for (step,) in steps]
    assert [(code / "number.txt").read_text() for code in codes if code] == ["one", "two"]
    (end,) = said
    assert end.endswith(" ended with ValueError: oh. Only what it had submitted runs")


def test_code_that_cannot_be_copied_is_as_it_is_when_the_job_runs(
    write_pipeline: WritePipeline,
) -> None:
    """There may be no place for temporary files: a line says so."""
    from mlflow_perf.pipelines.read_graph import read_graph
    from mlflow_perf.pipelines.sources import Sources

    def fail() -> Path:
        raise OSError("no usable temporary directory")

    said: list[str] = []
    sources = Sources(make_folder=fail, say=said.append)
    path = write_pipeline(CHANGES.partition('    (code / "number.txt").unlink')[0])
    jobs, _ = load_jobs(str(path), {}, sources=sources)
    for job in jobs:
        (step,) = read_graph(job, source=path, sources=sources).steps.values()
        assert step.code == path.parent / "code"
    assert said == [
        f"job {n} will run with its code as it is by then: no usable temporary directory"
        for n in (1, 2)
    ]


def test_code_that_has_not_changed_is_copied_once(
    write_pipeline: WritePipeline, tmp_path: Path
) -> None:
    """A script submits the same for many values."""
    from mlflow_perf.pipelines.sources import Sources

    folders = iter([tmp_path / "only"])
    sources = Sources(make_folder=lambda: next(folders))
    body = CHANGES.partition('    (code / "number.txt").unlink')[0]
    text = '        (code / "number.txt").write_text(number)\n'
    once = body.replace(text, "").replace(
        "code.mkdir()\n", 'code.mkdir()\n    (code / "a").touch()\n'
    )
    jobs, _ = load_jobs(str(write_pipeline(once)), {}, sources=sources)
    assert [list(sources.codes[id(job)].values()) for job in jobs] == [[tmp_path / "only"]] * 2


def test_the_job_is_the_one_that_a_script_submits(
    write_pipeline: WritePipeline, tmp_path: Path
) -> None:
    """MLClient is stood in for: data, compute and environments answer, and the job is taken."""
    pytest.importorskip("azure.identity")
    import azure.ai.ml

    from mlflow_perf.pipelines.read_graph import read_graph
    from mlflow_perf.pipelines.sources import Sources

    real, sources = azure.ai.ml.MLClient, Sources()
    path = write_pipeline(SUBMITS)
    jobs, _ = load_jobs(str(path), {}, sources=sources, arguments=["7"])
    graph = read_graph(jobs[0], source=path, sources=sources)
    assert graph.experiment == "mine"
    assert graph.steps["a"].values["rows"] == 7
    assert graph.steps["a"].values["folder"] == tmp_path
    assert azure.ai.ml.MLClient is real
    with pytest.raises(PipelineError, match=r"IndexError: .* give them after `--`"):
        load_jobs(str(path), {})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("components.get('x', '1')", "takes the component x 1 of the workspace"),
        ("models.get('m', 1)", "calls MLClient.models.get, which only Azure ML has"),
        ("batch_endpoints.invoke('e')", "calls MLClient.batch_endpoints.invoke"),
    ],
)
def test_a_call_that_only_azure_answers_is_refused(
    write_pipeline: WritePipeline, call: str, message: str
) -> None:
    """The refusal names the call, even where the script catches it."""
    path = write_pipeline(f"""
        from azure.ai.ml import MLClient
        client = MLClient.from_config(None)
        try:
            found = client.{call}
        except Exception:
            pass
        found.use()
    """)
    with pytest.raises(PipelineError, match=re.escape(message)):
        load_job(str(path), {})
