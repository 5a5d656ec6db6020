"""`MLFLOW_PERF_AUTOLOG=true`: whatever starts a run, and however its process ends, it reports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from mlflow.entities import Run

from mlflow_perf.cli import main

pytestmark = pytest.mark.e2e

STYLES = """
import json, os, mlflow, numpy
from mlflow import MlflowClient
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

runs = {}
with mlflow.start_run() as run:
    runs["with"] = run.info.run_id
runs["by hand"] = mlflow.start_run().info.run_id
mlflow.log_metric("mine", 1)
mlflow.end_run()

client = MlflowClient()
experiment = os.environ["MLFLOW_EXPERIMENT_ID"]
for name in ("run_id", "variable", "client"):
    runs[name] = client.create_run(experiment).info.run_id
client.set_terminated(runs["client"])
with mlflow.start_run(run_id=runs["run_id"]):
    pass
os.environ["MLFLOW_RUN_ID"] = runs["variable"]
mlflow.start_run()
mlflow.end_run()

mlflow.sklearn.autolog(log_models=False, silent=True)
search = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2)
values = numpy.arange(60)
search.fit(numpy.stack([values % 7, values % 3], axis=1).astype(float), values % 2)
is_search = "tags.estimator_name LIKE 'GridSearch%'"
found = mlflow.search_runs([experiment], is_search, output_format="list")
runs["search"] = found[0].info.run_id
for child in mlflow.search_runs(
    [experiment], f"tags.`mlflow.parentRunId` = '{runs['search']}'", output_format="list"
):
    runs[f"trial {child.data.params['C']}"] = child.info.run_id
print("RUNS", json.dumps(runs))
"""

ENDINGS = {
    "left open": "import mlflow; print('RUN', mlflow.start_run().info.run_id, flush=True)",
    "an error": "import mlflow; print('RUN', mlflow.start_run().info.run_id, flush=True); 1 / 0",
    "SIGTERM": (
        "import mlflow, os, time\nwith mlflow.start_run() as run:\n"
        "    print('RUN', run.info.run_id, flush=True)\n"
        "    os.kill(os.getpid(), 15)\n    time.sleep(100)"
    ),
    "Ctrl-C": (
        "import mlflow, os, time\nwith mlflow.start_run() as run:\n"
        "    print('RUN', run.info.run_id, flush=True)\n"
        "    os.kill(os.getpid(), 2)\n    time.sleep(100)"
    ),
    "forked workers": (
        "import mlflow, multiprocessing\ndef work():\n    with mlflow.start_run() as run:\n"
        "        print('RUN', run.info.run_id, flush=True)\n"
        "worker = multiprocessing.get_context('fork').Process(target=work)\n"
        "with mlflow.start_run():\n    worker.start()\n    worker.join()"
    ),
    "a worker that leaves it open": (
        "import mlflow, multiprocessing\ndef work():\n"
        "    print('RUN', mlflow.start_run().info.run_id, flush=True)\n"
        "worker = multiprocessing.get_context('fork').Process(target=work)\n"
        "worker.start()\nworker.join()"
    ),
    "a worker that fails": (
        "import mlflow, multiprocessing\ndef work():\n"
        "    print('RUN', mlflow.start_run().info.run_id, flush=True)\n    1 / 0\n"
        "worker = multiprocessing.get_context('fork').Process(target=work)\n"
        "worker.start()\nworker.join()"
    ),
    "workers alone": (
        "import mlflow, multiprocessing\ndef work():\n    with mlflow.start_run() as run:\n"
        "        print('RUN', run.info.run_id, flush=True)\n"
        "worker = multiprocessing.get_context('fork').Process(target=work)\n"
        "worker.start()\nworker.join()"
    ),
}


NESTED_WORKER = """
import mlflow, multiprocessing, os, pathlib, time
def work(parent):
    with mlflow.start_run(nested=True, parent_run_id=parent) as run:
        print("RUN", run.info.run_id, flush=True)
with mlflow.start_run() as run:
    while not list(pathlib.Path(os.environ["MLFLOW_PERF_DIR"]).glob("*.journal")):
        time.sleep(0.05)
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=work, args=[run.info.run_id])
    worker.start()
    worker.join()
    print("PARENT", run.info.run_id)
"""
PROJECT = """
import mlflow
with mlflow.start_run() as run:
    mlflow.log_metric("mine", 1)
    print("RUN", run.info.run_id, flush=True)
"""
KILLED = """
import mlflow, os, pathlib, time
mlflow.autolog(silent=True)
state = pathlib.Path(os.environ["MLFLOW_PERF_DIR"])
with mlflow.start_run(log_system_metrics=True) as run:
    mlflow.log_metric("mine", 1)
    print("RUN", run.info.run_id, flush=True)
    sizes = set()  # the journal begins with facts, and has figures once it grows
    while len(sizes) < 2:
        time.sleep(0.05)
        sizes |= {path.stat().st_size for path in state.glob("*.journal")} - {0}
    os.kill(os.getpid(), 9)
"""


def launch(command: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose runs report by themselves."""
    variables = {**os.environ, "MLFLOW_PERF_AUTOLOG": "true", **environ}
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=300, check=False
    )


def read(run_id: str) -> Run:
    """Return a run from the store."""
    return MlflowClient().get_run(run_id)


def test_each_way_to_start_a_run_reports(store: str, tmp_path: Path) -> None:
    """The fluent calls, resumed runs, the client, and scikit-learn's search with its trials."""
    done = launch([sys.executable, "-c", STYLES])
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout.split("RUNS ")[1])
    assert len(runs) == 8
    for name, run_id in runs.items():
        run = read(run_id)
        assert run.data.metrics.get("duration_sec", -1) >= 0, name
        assert run.data.tags["mlflow_perf.status"] == run.info.status == "FINISHED", name
        assert run_id in done.stderr, name
    trial = next(read(run_id) for name, run_id in runs.items() if name.startswith("trial"))
    search = read(runs["search"])
    assert trial.data.metrics["duration_sec"] >= 0.5 * search.data.metrics["duration_sec"]
    assert trial.data.tags["mlflow_perf.measured_by"] == runs["search"]
    assert "mlflow_perf.overlapping_runs" not in trial.data.tags


@pytest.mark.parametrize(
    ("ending", "code", "mlflow_status", "status", "cause"),
    [
        ("left open", 0, "FINISHED", "FINISHED", None),
        ("an error", 1, "FINISHED", "FAILED", "ZeroDivisionError"),
        ("SIGTERM", -signal.SIGTERM, "RUNNING", "KILLED", "SIGTERM"),
        ("Ctrl-C", -signal.SIGINT, "FAILED", "FAILED", "KeyboardInterrupt"),
        ("forked workers", 0, "FINISHED", "FINISHED", None),
        ("workers alone", 0, "FINISHED", "FINISHED", None),
        ("a worker that leaves it open", 0, "RUNNING", "FINISHED", None),
        ("a worker that fails", 0, "RUNNING", "FAILED", "ZeroDivisionError"),
    ],
)
def test_each_end_of_a_process_reports(
    ending: str, code: int, mlflow_status: str, status: str, cause: str | None, store: str
) -> None:
    """The job ends as without us, MLflow's status is MLflow's, and the report knows the cause."""
    done = launch([sys.executable, "-c", ENDINGS[ending]])
    assert done.returncode == code, done.stderr
    run = read(done.stdout.split("RUN ")[1].split()[0])
    assert run.info.status == mlflow_status
    assert run.data.tags["mlflow_perf.status"] == status
    assert run.data.tags.get("mlflow_perf.cause") == cause
    assert "duration_sec" in run.data.metrics
    left = Path(os.environ["MLFLOW_PERF_DIR"])
    assert [path.name for path in left.iterdir()] == []


FORK_SERVER = """
import multiprocessing
import mlflow, mlflow_perf
mlflow_perf.autolog()
def work():
    print("RUN", mlflow.start_run().info.run_id, flush=True)
if __name__ == "__main__":
    worker = multiprocessing.get_context("forkserver").Process(target=work)
    worker.start()
    worker.join()
"""


def test_a_worker_of_a_fork_server_reports(store: str, tmp_path: Path) -> None:
    """It imports the script, which switches autolog on, before it knows that it is a worker."""
    script = tmp_path / "job.py"
    script.write_text(FORK_SERVER)
    done = launch([sys.executable, str(script)], MLFLOW_PERF_AUTOLOG="")
    assert done.returncode == 0, done.stderr
    run = read(done.stdout.split("RUN ")[1].split()[0])
    assert run.data.tags["mlflow_perf.status"] == "FINISHED"
    assert "duration_sec" in run.data.metrics


def test_a_nested_run_of_a_worker_is_measured_by_its_parent(store: str) -> None:
    """The process above records what its children do, and the worker's run says so."""
    done = launch([sys.executable, "-c", NESTED_WORKER])
    assert done.returncode == 0, done.stderr
    inner, parent = (done.stdout.split(f"{word} ")[1].split()[0] for word in ("RUN", "PARENT"))
    assert read(inner).data.tags["mlflow_perf.measured_by"] == parent
    assert "mlflow_perf.measured_by" not in read(parent).data.tags


JOINING = """
import mlflow, multiprocessing, os, subprocess, sys, time

def join(run_id):
    with mlflow.start_run(run_id=run_id):
        mlflow.log_metric("of_worker", 1)

if __name__ == "__main__":
    how = sys.argv[1]
    with mlflow.start_run() as run:
        print("RUN", run.info.run_id, flush=True)
        time.sleep(2)
        if how == "command":
            code = "import mlflow; mlflow.start_run(); mlflow.log_metric('of_worker', 1)"
            environ = {**os.environ, "MLFLOW_RUN_ID": run.info.run_id}
            subprocess.run([sys.executable, "-c", code], env=environ, check=True)
        else:
            context = multiprocessing.get_context(how)
            worker = context.Process(target=join, args=(run.info.run_id,))
            worker.start()
            worker.join()
            assert worker.exitcode == 0
"""


@pytest.mark.parametrize("how", ["fork", "spawn", "command"])
def test_a_worker_that_joins_its_parents_run_leaves_the_report_to_it(
    store: str, tmp_path: Path, how: str
) -> None:
    """What the process above records contains what its workers do: a worker's time is a part."""
    script = tmp_path / "job.py"
    script.write_text(JOINING)
    done = launch([sys.executable, str(script), how])
    assert done.returncode == 0, done.stderr
    run = read(done.stdout.split("RUN ")[1].split()[0])
    assert run.data.metrics["of_worker"] == 1
    assert run.data.metrics["duration_sec"] > 2
    assert run.data.tags["mlflow_perf.component"] == "job"
    assert "replaced" not in done.stderr


def test_a_project_reports(store: str, tmp_path: Path) -> None:
    """The run that `mlflow run` starts has one report: that of the script of its entry point."""
    (tmp_path / "train.py").write_text(PROJECT)
    (tmp_path / "MLproject").write_text(
        f"name: tiny\nentry_points:\n  main:\n    command: {sys.executable} train.py\n"
    )
    done = launch([sys.executable, "-m", "mlflow", "run", "--env-manager=local", str(tmp_path)])
    assert done.returncode == 0, done.stderr
    run = read(done.stdout.split("RUN ")[1].split()[0])
    assert run.data.tags["mlflow_perf.status"] == run.info.status == "FINISHED"
    assert run.data.tags["mlflow_perf.component"] == "train"
    assert run.data.metrics["run_node_count"] == 1.0
    assert run.data.metrics["mine"] == 1.0


def test_a_notebook_reports(store: str, tmp_path: Path) -> None:
    """A run that one cell starts and another one ends has the time between them."""
    pytest.importorskip("ipykernel")
    manager_module = pytest.importorskip("jupyter_client.manager")
    manager, client = manager_module.start_new_kernel(
        kernel_name="python3", startup_timeout=90,
        env={**os.environ, "MLFLOW_PERF_AUTOLOG": "true"},
    )  # fmt: skip
    told: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        told.append(message["content"].get("text", ""))

    try:
        for cell in (
            "import mlflow; print('RUN', mlflow.start_run().info.run_id)",
            "1 / 0",  # an error of a cell is none of the run, which goes on
            "mlflow.end_run()",
        ):
            client.execute_interactive(cell, timeout=120, output_hook=hear, stop_on_error=False)
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
        manager.cleanup_resources()
    run = read("".join(told).split("RUN ")[1].split()[0])
    assert run.data.tags["mlflow_perf.status"] == run.info.status == "FINISHED"
    assert run.data.metrics["duration_sec"] > 0


def test_a_killed_run_is_recovered_beside_mlflow_s_own_metrics(store: str) -> None:
    """After SIGKILL the journal has the report; MLflow's autolog and monitor lose nothing."""
    done = launch([sys.executable, "-c", KILLED], MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL="0.2")
    assert done.returncode == -signal.SIGKILL, done.stderr
    run_id = done.stdout.split("RUN ")[1].split()[0]
    state = Path(os.environ["MLFLOW_PERF_DIR"])
    assert list(state.glob("*.journal"))
    assert CliRunner().invoke(main, ["recover"]).exit_code == 0
    run = read(run_id)
    assert run.data.tags["mlflow_perf.status"] == "KILLED"
    assert run.data.metrics["duration_sec"] >= 1.0
    assert run.data.metrics["mine"] == 1.0
    assert any(name.startswith("system/") for name in run.data.metrics)
    assert list(state.glob("*.journal")) == []
