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
