"""A wrapped command's report joins the run that the command starts, or is linked with its runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from mlflow_perf.analysis.fleet import sum_fleet

pytestmark = pytest.mark.e2e

ONE = """
import mlflow
with mlflow.start_run() as run:
    mlflow.log_metric("accuracy", 0.9)
    with mlflow.start_run(nested=True):
        pass
"""
SEVERAL = """
import mlflow
for _ in range(2):
    with mlflow.start_run(run_name="mine"):
        pass
"""
BLOCKS = """
import sys
import mlflow_perf
for name in sys.argv[1:]:
    with mlflow_perf.report(name):
        sum(range(1_000_000))
"""
IMPORT = """
from pathlib import Path
Path("jobs.txt").write_text(
    "JobID|JobName|State|ElapsedRaw|Start\\n1|a|COMPLETED|60|2026-01-02T10:00:00\\n"
)
from mlflow_perf.cli import main
main(["import", "jobs.txt"])
"""
AROUND = """
import mlflow_perf
with mlflow_perf.report("outer"):
    import mlflow
    with mlflow.start_run(run_name="mine"):
        pass
"""
ELSEWHERE = """
import socket
socket.gethostname = lambda: "elsewhere"
import mlflow_perf
with mlflow_perf.report("far"):
    pass
"""
OTHER_STORE = """
import mlflow
mlflow.set_tracking_uri("sqlite:///other.db")
mlflow.set_experiment("mine")
with mlflow.start_run():
    mlflow.log_metric("accuracy", 0.9)
"""


def wrap(
    code: str, *options: str, args: Sequence[str] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a script below the wrapper."""
    command = [sys.executable, "-m", "mlflow_perf", "run", "--name", "job", *options, "--"]
    return subprocess.run(
        [*command, sys.executable, "-c", code, *args], env={**os.environ, **environ},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def list_runs(uri: str | None = None, experiment: str | None = None) -> list[Run]:
    """Return the runs of the test's experiment, or of another one."""
    client = MlflowClient(uri)
    known = os.environ["MLFLOW_EXPERIMENT_ID"]
    if experiment is not None:
        found = client.get_experiment_by_name(experiment)
        assert found is not None
        known = found.experiment_id
    return list(client.search_runs([known]))


def test_the_report_joins_the_only_run(store: str) -> None:
    """The command's run has cost and accuracy; nested runs belong to it, and no run is added."""
    done = wrap(ONE)
    assert done.returncode == 0, done.stderr
    runs = list_runs()
    assert len(runs) == 2
    (joined,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert {"accuracy", "duration_sec"} <= joined.data.metrics.keys()
    assert joined.data.tags["mlflow_perf.component"] == "job"
    assert joined.info.status == "FINISHED"
    assert joined.info.run_id in done.stderr
    assert list(Path(os.environ["MLFLOW_PERF_DIR"]).iterdir()) == []


def test_a_workflow_of_ours_is_no_run_to_join(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `mlflow-perf import` or a pipeline makes has a report of its own."""
    monkeypatch.chdir(tmp_path)
    done = wrap(IMPORT)
    assert done.returncode == 0, done.stderr
    (own,) = list_runs()
    assert own.data.tags["mlflow_perf.component"] == "job"
    (workflow, task) = sorted(list_runs(experiment="jobs"), key=lambda run: len(run.data.tags))
    assert task.data.tags["mlflow.parentRunId"] == workflow.info.run_id
    assert "mlflow_perf.component" not in workflow.data.tags


@pytest.mark.parametrize(("code", "options"), [(SEVERAL, []), (ONE, ["--own-run"])])
def test_any_other_command_has_a_run_of_its_own_linked_both_ways(
    store: str, code: str, options: list[str]
) -> None:
    """Both sides say where the other one is; nobody becomes somebody's child."""
    done = wrap(code, *options)
    assert done.returncode == 0, done.stderr
    runs = {run.info.run_id: run for run in list_runs()}
    (own,) = [run for run in runs.values() if "mlflow_perf.started_runs" in run.data.tags]
    started = json.loads(own.data.tags["mlflow_perf.started_runs"])
    assert len(started) == (2 if code == SEVERAL else 1)
    assert "duration_sec" in own.data.metrics
    for run_id in started:
        assert runs[run_id].data.tags["mlflow_perf.measured_by"] == own.info.run_id
        assert "duration_sec" not in runs[run_id].data.metrics
        assert "mlflow.parentRunId" not in runs[run_id].data.tags


def test_a_run_in_another_store_is_joined_there(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that chooses its store gets its report in that store, and no dangling parent."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID")
    done = wrap(OTHER_STORE)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "0")
    (run,) = list_runs(f"sqlite:///{tmp_path / 'other.db'}", "mine")
    assert {"accuracy", "duration_sec"} <= run.data.metrics.keys()
    assert "mlflow.parentRunId" not in run.data.tags


def test_a_command_that_reports_by_itself_is_not_counted_twice(store: str) -> None:
    """Under the switch the script's own reports stay as they are, and the wrapper adds none."""
    done = wrap(ONE, MLFLOW_PERF_AUTOLOG="true")
    assert done.returncode == 0, done.stderr
    runs = list_runs()
    assert len(runs) == 2
    assert all("duration_sec" in run.data.metrics for run in runs)
    assert "job" not in {run.data.tags["mlflow_perf.component"] for run in runs}


@pytest.mark.parametrize("names", [("one",), ("one", "two")])
def test_blocks_keep_their_runs_inside_the_command_s(store: str, names: Sequence[str]) -> None:
    """The wrapper has a run of its own, that names the blocks' runs, and they name it."""
    done = wrap(BLOCKS, args=names)
    assert done.returncode == 0, done.stderr
    runs = {run.data.tags["mlflow_perf.component"]: run for run in list_runs()}
    own = runs.pop("job")
    assert {*runs} == {*names}
    started = json.loads(own.data.tags["mlflow_perf.started_runs"])
    assert {*started} == {run.info.run_id for run in runs.values()}
    assert {run.data.tags["mlflow_perf.measured_by"] for run in runs.values()} == {own.info.run_id}
    (whole,) = sum_fleet("experiment")
    assert whole.runs == len(names) + 1
    assert whole.figures["cpu_hours"] == pytest.approx(own.data.metrics["run_cpu_hours"])


def test_a_block_around_the_command_s_run_is_inside_the_report_in_that_run(store: str) -> None:
    """The report joins the run, as ever, and then measures the block that is its parent."""
    done = wrap(AROUND)
    assert done.returncode == 0, done.stderr
    runs = {run.data.tags["mlflow_perf.component"]: run for run in list_runs()}
    assert {*runs} == {"outer", "job"}
    assert runs["job"].info.run_name == "mine"
    assert runs["outer"].data.tags["mlflow_perf.measured_by"] == runs["job"].info.run_id
    assert "mlflow_perf.measured_by" not in runs["job"].data.tags


def test_a_block_of_another_host_is_not_measured_by_the_command(store: str) -> None:
    """The command started it, but the wrapper saw nothing of it."""
    done = wrap(ELSEWHERE)
    assert done.returncode == 0, done.stderr
    runs = {run.data.tags["mlflow_perf.component"]: run for run in list_runs()}
    far = runs["far"]
    assert json.loads(runs["job"].data.tags["mlflow_perf.started_runs"]) == [far.info.run_id]
    assert "mlflow_perf.measured_by" not in far.data.tags


def test_a_nested_run_with_a_report_names_the_run_around_it(store: str) -> None:
    """Several autologged runs are in the command's, and their nested runs are in theirs."""
    done = wrap(SEVERAL.replace("pass", "mlflow.start_run(nested=True); mlflow.end_run()"),
                MLFLOW_PERF_AUTOLOG="true")  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs = {run.info.run_id: run for run in list_runs()}
    (own,) = [run for run in runs.values() if "mlflow_perf.started_runs" in run.data.tags]
    for run in runs.values():
        above = run.data.tags.get("mlflow.parentRunId", own.info.run_id)
        assert run is own or run.data.tags["mlflow_perf.measured_by"] == above
