"""The line on the standard error after a run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mlflow_perf.model.document import NodeDocument
from mlflow_perf.session.closing_line import describe_run, write_closing_line
from mlflow_perf.tracking.run_handle import RunHandle


def test_it_says_verdict_run_and_link() -> None:
    """A server has a page to link to; elsewhere a command shows the report."""
    document = NodeDocument(component="train", extra={"bottleneck": "cpu", "advice": "Ask for 4."})
    run = RunHandle("http://user:secret@host:5000/", run_id="8c2f", experiment_id="7")
    said = "mlflow-perf: train | cpu: Ask for 4. | run 8c2f | "
    page = "http://host:5000/#/experiments/7/runs/8c2f?workflowType=machine_learning"
    assert describe_run(run, document) == said + page
    run.has_page = True
    assert describe_run(run, document) == said + "http://host:5000/perf/run?id=8c2f"
    run.tracking_uri = "sqlite:///mlflow.db"
    assert describe_run(run, document) == said + "mlflow-perf show 8c2f"


def test_a_failed_block_is_called_failed_and_a_short_one_too_short() -> None:
    """The line says how the block ended, and gives no verdict on milliseconds."""
    extra = {"kind": "too_short", "bottleneck": "balanced", "advice": "The block took 33 ms."}
    document = NodeDocument(component="train", status="FAILED", extra=extra)
    text = describe_run(RunHandle(run_id="8c2f"), document)
    shown = "run 8c2f | mlflow-perf show 8c2f"
    assert text == f"mlflow-perf: train | failed | The block took 33 ms. | {shown}"


def test_a_run_with_a_name_of_its_own_is_named() -> None:
    """Of many trials of one script, the lines tell one from another."""
    document = NodeDocument(component="search")
    shown = "run 8c2f | mlflow-perf show 8c2f"
    text = describe_run(RunHandle(run_id="8c2f", run_name="trial-3"), document)
    assert text == f"mlflow-perf: search (trial-3) | {shown}"
    text = describe_run(RunHandle(run_id="8c2f", run_name="search"), document)
    assert text == f"mlflow-perf: search | {shown}"


def test_it_is_one_line_whatever_the_name_is() -> None:
    """A line break, or a command to the terminal, stays in its place."""
    text = describe_run(RunHandle(run_id="8c2f"), NodeDocument(component="a\nb\x1b[2J"))
    assert text == "mlflow-perf: a\\x0ab\\x1b[2J | run 8c2f | mlflow-perf show 8c2f"


def test_a_closed_standard_error_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon has none."""
    monkeypatch.setattr(sys, "stderr", None)
    write_closing_line(RunHandle(run_id="8c2f"), NodeDocument())


BLOCK = """
import sys
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.session.closing_line import write_closing_line
from mlflow_perf.tracking.run_handle import RunHandle
print(42, flush=True)
write_closing_line(RunHandle(run_id="8c2f"), NodeDocument(component="train"))
"""


@pytest.mark.parametrize(
    ("is_airflow", "is_merged", "last"),
    [(True, True, "42"), (True, False, "42"), (False, True, "mlflow-perf: train | run 8c2f")],
)
def test_the_last_line_of_a_task_of_airflow_is_its_result(
    monkeypatch: pytest.MonkeyPatch, is_airflow: bool, is_merged: bool, last: str
) -> None:
    """Its BashOperator reads both streams as one, and hands the last line to the next task."""
    monkeypatch.delenv("AIRFLOW_CTX_DAG_ID", raising=False)
    if is_airflow:
        monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "etl")
    done = subprocess.run(
        [sys.executable, "-c", BLOCK], stdout=subprocess.PIPE, text=True, check=True,
        stderr=subprocess.STDOUT if is_merged else subprocess.PIPE,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1].startswith(last)
    if not is_merged:
        assert "run 8c2f" in done.stderr
