"""`mlflow-perf explain`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import Result
from mlflow import MlflowClient
from tests.cli.conftest import make_document

from mlflow_perf.model.document import PerfDocument

Cli = Callable[..., Result]


def test_a_run_is_explained_in_markdown_and_json(
    cli: Cli, log_run: Callable[..., str], write_document: Callable[..., str]
) -> None:
    """A run of MLflow by its id, two runs, and the keys of the JSON."""
    run_id = log_run({})
    data = json.loads(cli("explain", run_id, "--json").stdout)
    assert {"run_id", "verdict", "findings", "phases", "functions"} <= {*data}
    assert data["run_id"] == run_id
    assert data["findings"][0]["evidence"]
    slow = write_document({"duration_sec": 90.0, "node_cpu_hours": 0.3})
    assert "### What changed" in cli("explain", run_id, slow).stdout


def test_a_workflow_is_explained_by_its_steps(cli: Cli, log_run: Callable[..., str]) -> None:
    """Each finding of a workflow's parent names its step."""
    parent = log_run()
    log_run({}, component="fit", tags={"mlflow.parentRunId": parent})
    said = cli("explain", parent).stdout
    assert "of the steps' time: step fit: " in said


def test_a_measured_parent_is_no_step_of_its_workflow(
    cli: Cli, log_run: Callable[..., str]
) -> None:
    """Steps have the numbers that `show` gives them, also beside one that has no figures yet."""
    parent = log_run({}, component="fit")
    inside = {"mlflow.parentRunId": parent}
    log_run(component="fit", tags=inside, status="RUNNING")
    log_run({}, component="fit", tags=inside)
    log_run({}, component="fit", tags=inside)
    found = json.loads(cli("explain", parent, "--json").stdout)["findings"]
    steps = sorted(one["evidence"].split(":")[0] for one in found)
    assert steps == ["step fit (2)", "step fit (3)"]
    shown = cli("show", parent).stdout
    assert "3 steps" in shown
    assert "fit (3)" in shown


def test_a_step_has_the_finding_that_it_has_alone(
    cli: Cli, client: MlflowClient, log_run: Callable[..., str]
) -> None:
    """A workflow's explanation reads the curves too: growth of memory is seen in nothing else."""
    parent = log_run()
    child = log_run({}, component="fit", documents=False, tags={"mlflow.parentRunId": parent})
    node = make_document({}, component="fit").nodes[0]
    node.reports = {
        "elapsed_sec": [float(at) for at in range(61)],
        "job_mem_mb": [100.0 + 900 * at for at in range(61)],
    }
    client.log_text(child, json.dumps(PerfDocument({0: node}).as_dict()), "perf/node-0.json")
    alone = json.loads(cli("explain", child, "--json").stdout)["findings"][0]
    [of_step] = json.loads(cli("explain", parent, "--json").stdout)["findings"]
    assert alone["kind"] == of_step["kind"] == "memory_growth"
    assert of_step["evidence"] == f"step fit: {alone['evidence']}"


def test_functions_of_a_workflow_are_those_of_a_named_step(cli: Cli, tmp_path: Path) -> None:
    """Their shares are of the longest step, not of the workflow; those of one run need no name."""
    long = make_document({}, component="fit").nodes[0]
    row = {"function": "train", "file": "fit.py", "line": 3, "self_pct": 100.0, "total_pct": 100.0}
    long.extra["profile"] = {"functions": [row], "own": []}
    short = make_document({}, component="load").nodes[0]
    short.duration_sec = 2.0
    whole = PerfDocument({0: short}, components={"fit": PerfDocument({0: long})})
    flow = str(whole.save(tmp_path / "flow.json"))
    assert "### Functions of step fit\n" in cli("explain", flow).stdout
    [found] = json.loads(cli("explain", flow, "--json").stdout)["functions"]
    assert (found["function"], found["step"]) == ("train", "fit")
    alone = str(PerfDocument({0: long}).save(tmp_path / "alone.json"))
    assert "### Functions\n" in cli("explain", alone).stdout
    assert "step" not in json.loads(cli("explain", alone, "--json").stdout)["functions"][0]


def test_each_component_of_a_run_has_its_own_finding(cli: Cli, tmp_path: Path) -> None:
    """A run's first component and its further ones are explained as steps."""
    whole = make_document({}, component="load")
    whole.components["fit"] = make_document({"oom_kills": 1.0}, component="fit")
    file = str(whole.save(tmp_path / "both.json"))
    found = json.loads(cli("explain", file, "--json").stdout)["findings"]
    kinds = {one["evidence"].split(":")[0]: one["kind"] for one in found}
    assert kinds == {"step fit": "memory", "step load": "balanced"}


def test_a_run_without_a_document_is_explained_by_its_metrics(
    cli: Cli, log_run: Callable[..., str]
) -> None:
    """Imported runs have metrics alone: they have findings, and no phases."""
    run_id = log_run({"job_cpu_avg_cores": 1.0, "cpu_limit_cores": 4.0}, documents=False)
    result = cli("explain", run_id)
    assert result.exit_code == 0, result.stderr
    assert "### Findings" in result.stdout


def test_a_missing_run_is_one_line_and_two(cli: Cli) -> None:
    """A run that does not exist ends with 2 and one line."""
    result = cli("explain", "no/such")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
