"""`mlflow-perf explain`."""

from __future__ import annotations

import json
from collections.abc import Callable

from click.testing import Result

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
    assert "step fit: " in cli("explain", parent).stdout


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
