"""`mlflow-perf run`: the command is as if it were alone, and its report is in MLflow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from mlflow.entities import Run
from tests.faults.conftest import wait_until
from tests.faults.nursery import Job

from mlflow_perf.cli import main
from mlflow_perf.tracking.load import load

WRAP = ("-m", "mlflow_perf", "run")


def wrapped(*argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `mlflow-perf run` as a process of its own."""
    command = [sys.executable, "-m", "mlflow_perf", "run", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def newest_run() -> Run:
    """Return the newest run of the store."""
    client = MlflowClient()
    experiments = [e.experiment_id for e in client.search_experiments()]
    return client.search_runs(experiments, max_results=1)[0]


@pytest.mark.e2e
def test_an_argument_may_be_of_any_length(client: MlflowClient, python: Callable[..., Job]) -> None:
    """An SQL text that is longer than any name of a file is passed on, and the run is named."""
    job = python(*WRAP, "--", "echo", "x" * 5000)
    assert (job.wait(), job.output) == (0, "x" * 5000 + "\n")
    assert newest_run().info.run_name == "echo"


@pytest.mark.e2e
def test_output_input_and_exit_code_pass_through(
    client: MlflowClient, python: Callable[..., Job], tmp_path: Path
) -> None:
    """What goes in and comes out is the command's own; its run is FAILED, with all figures."""
    # The settings that are no options of the command hold too: it waits for the file of one.
    environ = {"MLFLOW_PERF_TEXTFILE": str(tmp_path / "command.prom")}
    (tmp_path / "given").write_text("given")
    exported = 'until grep -qs component= "$MLFLOW_PERF_TEXTFILE"; do sleep 0.1; done'
    script = f"cat; {exported}; echo err >&2; exit 7"
    command = ("--interval", "0.1", "--", "sh", "-c", script)
    job = python(*WRAP, *command, stdin=str(tmp_path / "given"), **environ)
    assert (job.wait(), job.output) == (7, "given")
    run = newest_run()
    first, line = job.errors.splitlines()  # also where no terminal is
    assert (first, line.startswith("mlflow-perf: sh | ")) == ("err", True)
    assert line.endswith(f"run {run.info.run_id} | mlflow-perf show {run.info.run_id}")
    assert run.info.run_name == "sh"
    assert run.info.status == "FAILED"
    assert run.data.tags["mlflow_perf.cause"] == "exit code 7"
    assert run.data.metrics["duration_sec"] > 0
    ours = run.data.metrics["perf_overhead_pct"] / 100 * run.data.metrics["duration_sec"]
    assert 0 < ours < 0.5, "MLflow is imported when the command has ended"
    files = [file.path for file in MlflowClient().list_artifacts(run.info.run_id)]
    assert sorted(files) == ["perf", "perf_report.html"]


@pytest.mark.e2e
def test_the_switches_of_a_command_are_in_its_report(
    client: MlflowClient, python: Callable[..., Job]
) -> None:
    """The kernel counts them when the command has ended, after all samples but the last."""
    code = "import time\nfor _ in range(400): time.sleep(1e-4)"
    job = python(*WRAP, "--", sys.executable, "-S", "-c", code)
    assert job.wait() == 0
    summary = load(newest_run().info.run_id).nodes[0].summary
    assert summary["job_voluntary_switches"] >= 400, "each sleep is one"


@pytest.mark.e2e
@pytest.mark.parametrize("new_store", [False, True])
def test_the_run_begins_and_ends_with_its_command(
    client: MlflowClient, python: Callable[..., Job], tmp_path: Path, new_store: bool
) -> None:
    """MLflow's start and duration are the command's, although a new store takes seconds to make."""
    uri = f"sqlite:///{tmp_path}/new.db" if new_store else os.environ["MLFLOW_TRACKING_URI"]
    environ = {"MLFLOW_TRACKING_URI": uri}
    if new_store:
        environ["MLFLOW_EXPERIMENT_ID"] = "0"
    script = "import time; print(time.time(), flush=True); time.sleep(1.5); print(time.time())"
    job = python(*WRAP, "--name", "slept", "--", sys.executable, "-c", script, **environ)
    assert job.wait() == 0, job.errors
    began, ended = map(float, job.output.split())
    store = MlflowClient(uri)
    experiments = [e.experiment_id for e in store.search_experiments()]
    run = store.search_runs(experiments, max_results=1)[0]
    took_sec = run.data.metrics["duration_sec"]
    assert 0 <= began - run.info.start_time / 1000 < 5
    assert 0 <= run.info.end_time / 1000 - ended < 5
    assert run.info.end_time - run.info.start_time == pytest.approx(1000 * took_sec, abs=500)


@pytest.mark.parametrize(
    ("script", "code", "noted", "status"),
    [
        ("trap '' TERM; kill -TERM 0; exit 0", 0, "FINISHED", "FINISHED"),
        ("trap '' TERM; kill -TERM 0; exit 7", 7, "FAILED", "FAILED"),
        ("kill -TERM $$", -15, "ENDED", "KILLED"),
    ],
)
def test_the_command_of_a_step_ends_as_its_exit_code_says(
    tmp_path: Path, script: str, code: int, noted: str, status: str
) -> None:
    """So the runner of the pipeline has it, too; if that is killed, the file has the end."""
    end_file, environ = tmp_path / "ended", {**os.environ, "MLFLOW_PERF_DIR": str(tmp_path)}
    end_file.write_text("RUNNING")
    held = ("--hold", "--end-file", str(end_file), "--", "sh", "-c", script)
    done = wrapped(*held, env=environ, start_new_session=True)  # `kill 0` is for all of its group
    assert (done.returncode, end_file.read_text()) == (code, noted)
    (journal,) = tmp_path.glob("*.journal")
    assert json.loads(journal.read_text().splitlines()[-1])["final"]["status"] == status


@pytest.mark.e2e
def test_a_command_of_20_ms_is_measured_from_its_first_moment(client: MlflowClient) -> None:
    """CPU time and memory peak of a command that ends at once are the command's."""
    burn = "import time\nx = bytearray(b'x') * (300 << 20)\nwhile time.process_time() < 0.2: pass"
    environ = {**os.environ, "MLFLOW_PERF_QUIET": "true"}
    result = wrapped("--name", "short", "--", sys.executable, "-S", "-c", burn, env=environ)
    assert (result.returncode, result.stderr) == (0, "")
    run = newest_run()
    assert run.info.status == "FINISHED"
    # The interpreter's start and end are the command's too: 0.1 s on a slow machine.
    assert 0.19 < 3600 * run.data.metrics["job_cpu_hours"] < 0.6
    assert 300 < run.data.metrics["job_max_mem_mb"] < 330


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("number", "script", "code"),
    [
        (signal.SIGTERM, "echo ready; sleep 60", -signal.SIGTERM),
        (
            signal.SIGTERM,
            "trap 'echo mine; exit 5' TERM; echo ready; sleep 60 >/dev/null 2>&1 & wait",
            5,
        ),
        (
            signal.SIGUSR1,
            "trap 'echo mine; exit 0' USR1; echo ready; sleep 60 >/dev/null 2>&1 & wait",
            0,
        ),
    ],
)
def test_signals_reach_the_command(
    client: MlflowClient, python: Callable[..., Job], number: int, script: str, code: int
) -> None:
    """The command gets each signal, its own handler runs, and its end is ours."""
    exec_script = script if "trap" in script else f"{script.replace('sleep', 'exec sleep')}"
    job = python(*WRAP, "--", "sh", "-c", exec_script)
    wait_until(lambda: "ready\n" in job.output, job)
    job.kill(number)
    assert job.wait() == code, job.errors
    assert ("mine" in job.output) == ("trap" in script)
    run = newest_run()
    assert run.info.status == ("KILLED" if number == signal.SIGTERM else "FINISHED")
    if number == signal.SIGTERM:
        assert run.data.tags["mlflow_perf.cause"] == "signal SIGTERM"


def test_a_command_that_is_not_there_is_one_line_and_127() -> None:
    """As a shell says it; nothing is reported, and no run is made."""
    result = CliRunner().invoke(main, ["run", "--", "no-such-command-here"])
    assert result.exit_code == 127
    assert result.output == "mlflow-perf: no-such-command-here: command not found\n"
    result = CliRunner().invoke(main, ["run", "--", "/etc/passwd"])
    assert result.exit_code == 126


def test_wrong_settings_are_refused_before_the_command_runs(tmp_path: Path) -> None:
    """A setting out of its range is one line and 2."""
    file = tmp_path / "ran"
    result = CliRunner().invoke(main, ["run", "--interval", "0", "--", "touch", str(file)])
    assert result.exit_code == 2
    assert "interval is 0.0" in result.output
    assert not file.exists()


@pytest.mark.e2e
def test_disabled_is_the_command_alone() -> None:
    """With MLFLOW_PERF_DISABLE the command takes our place."""
    begin = time.monotonic()
    result = wrapped("--", "sh", "-c", "exit 3", env={**os.environ, "MLFLOW_PERF_DISABLE": "1"})
    assert result.returncode == 3
    assert begin < time.monotonic()


@pytest.mark.e2e
def test_a_new_store_is_left_to_the_command_that_makes_it(
    python: Callable[..., Job], tmp_path: Path
) -> None:
    """Two processes that migrate a new database at once would break each other."""
    environ = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/new.db"}
    script = "import mlflow\nwith mlflow.start_run(): mlflow.log_param('leaves', 63)"
    job = python(*WRAP, "--name", "wrapped", "--", sys.executable, "-c", script, **environ)
    assert job.wait() == 0, job.errors
    runs = MlflowClient(f"sqlite:///{tmp_path}/new.db").search_runs(["0"])
    assert any(run.data.params.get("leaves") == "63" for run in runs)
    assert any(run.data.tags.get("mlflow_perf.component") == "wrapped" for run in runs)
    assert {run.info.status for run in runs} == {"FINISHED"}
