"""The tracking server away, ill, and back: the job is unharmed, and its report arrives."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.faults.conftest import wait_until

if TYPE_CHECKING:
    from mlflow.entities import Run
    from tests.faults.conftest import Fault, Faults

pytestmark = pytest.mark.e2e

QUICK = {"MLFLOW_PERF_START_TIMEOUT": "0.5", "MLFLOW_PERF_EXIT_TIMEOUT": "1"}


def test_ill_from_start_to_end(faults: Faults, fault: Fault) -> None:
    """The job goes well, its exit is bounded, one line says what to do, and nothing is lost."""
    begin = time.monotonic()
    ill = [faults.ill(how) for how in ("refuses", "hang", 429, 500, 503, 401)]
    jobs = [one.start("busy", 0.2, **QUICK) for one in ill]
    for one, job in zip(ill, jobs, strict=True):
        assert job.wait() == 0, one.how
        took = time.monotonic() - begin
        assert took < 60, "MLflow alone takes minutes"
        told = [line for line in job.output.splitlines() if "mlflow-perf recover" in line]
        assert len(told) == 1, job.output
        assert len(job.output.splitlines()) <= 2 + 2, job.output
        one.proxy.heal()
    sending = [one.recover(wait=False) for one in ill]
    for one, job in zip(ill, sending, strict=True):
        run_id = one.recovered(job)
        assert one.run(run_id).info.status == "FINISHED", one.how
        assert one.run(run_id).data.metrics["ops/rows/count"] == 7, one.how
        assert one.has_all(run_id), one.how
        one.proxy.close()
        fault(f"server {one.how}, start to end", "job unharmed, exit bounded; recover", "none")


def test_ctrl_c_while_the_start_hangs(faults: Faults, fault: Fault) -> None:
    """It ends at once, and the run that the server may still make is ended by recover."""
    ill = faults.ill("hang")
    job = ill.start("sleeping")
    wait_until(lambda: ill.proxy.asked >= 1, job)
    begin = time.monotonic()
    job.kill(signal.SIGINT)
    assert job.wait() == -signal.SIGINT, job.output
    assert time.monotonic() - begin < 10, "its limit is 60 s"
    assert "KeyboardInterrupt" in job.output
    assert "mlflow-perf recover" not in job.output
    ill.proxy.heal()
    (done,) = json.loads(ill.recover().output)
    assert (done["outcome"], done["run_id"]) == ("not begun", None)
    assert ill.journals == []
    ill.proxy.close()
    fault("Ctrl-C while the server hangs at the start", "ends at once", "none")


def test_sigterm_beside_a_server_that_hangs_since_the_start(faults: Faults, fault: Fault) -> None:
    """The process, and with it its threads, ends soon; the journal is kept, as one line says."""
    ill = faults.ill("hang")
    job = ill.start("sleeping", MLFLOW_PERF_START_TIMEOUT="0.5")
    wait_until(lambda: "go\n" in job.output, job)
    begin = time.monotonic()
    job.kill(signal.SIGTERM)
    assert job.wait() == -signal.SIGTERM, job.output
    assert time.monotonic() - begin < 8, "a report may take 20 s elsewhere"
    assert job.output.count("mlflow-perf recover") == 1, job.output
    ill.proxy.heal()
    run_id = ill.recovered()
    assert ill.run(run_id).info.status == "KILLED"
    assert ill.run(run_id).data.tags["mlflow_perf.cause"] == "SIGTERM"
    assert ill.has_all(run_id)
    ill.proxy.close()
    fault("SIGTERM, server hangs since the start", "ends within a second or two; recover", "none")


def test_ill_in_the_middle(faults: Faults, fault: Fault, tmp_path: Path) -> None:
    """Sampling keeps its own pace, and once the server is back all is sent at the end."""
    file = tmp_path / "end"
    ill = [faults.ill(how, from_now=False) for how in ("refuses", "hang", 429, 500)]
    jobs = [one.started("waits_for", str(file)) for one in ill]
    for one in ill:
        one.sicken()
    time.sleep(1)
    for one in ill:
        one.proxy.heal()
    file.touch()
    for one, (job, run_id) in zip(ill, jobs, strict=True):
        assert job.wait() == 0, job.output
        assert one.run(run_id).info.status == "FINISHED", one.how
        assert one.has_all(run_id), one.how
        found = re.search(r"took ([\d.]+) with (\d+) rows", job.output)
        assert found is not None
        took, rows = found.groups()
        assert int(rows) >= 0.5 * float(took) / 0.05, "no gap while the server was away"
        assert one.journals == []
        one.proxy.close()
        fault(f"server {one.how} in the middle", "no gap, sent at the end", "none")


PIPELINE = """
type: pipeline
display_name: ill
jobs:
  one:
    type: command
    command: echo begun; touch {gate}/begun; until [ -e {gate}/ill ]; do sleep 0.1; done
    environment: azureml:any@latest
    outputs: {{done: {{type: uri_folder}}}}
  two:
    type: command
    command: echo two; ls ${{{{inputs.one}}}}
    environment: azureml:any@latest
    inputs: {{one: "${{{{parent.jobs.one.outputs.done}}}}"}}
  bad:
    type: command
    command: echo ${{{{inputs.one}}}} > outputs/seen.txt; echo broken; exit 4
    environment: azureml:any@latest
    inputs: {{one: "${{{{parent.jobs.one.outputs.done}}}}"}}
    outputs: {{done: {{type: uri_folder}}}}
  never:
    type: command
    command: ls ${{{{inputs.bad}}}}
    environment: azureml:any@latest
    inputs: {{bad: "${{{{parent.jobs.bad.outputs.done}}}}"}}
"""


def _start_pipeline(ill: Faults, folder: Path) -> subprocess.Popen[str]:
    """Run the pipeline of a folder with one retry and quick time-outs."""
    environ = os.environ | QUICK | {"MLFLOW_PERF_DIR": str(ill.state)}
    command = [sys.executable, "-m", "mlflow_perf", "pipeline", "run", "pipeline.yml"]
    return subprocess.Popen(
        [*command, "--environments", "here", "--retries", "1"], cwd=folder, text=True,
        env=environ | {"MLFLOW_TRACKING_URI": ill.proxy.uri},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_a_pipeline_goes_on_without_it(faults: Faults, fault: Fault, tmp_path: Path) -> None:
    """No step waits for the server for long, and recover makes the pipeline whole."""
    ill = [faults.ill(how, from_now=False) for how in ("refuses", 404)]
    jobs = []
    for one in ill:
        folder = tmp_path / str(one.how)
        folder.mkdir()
        (folder / "pipeline.yml").write_text(PIPELINE.format(gate=folder))
        jobs.append(_start_pipeline(one, folder))
    for one, job in zip(ill, jobs, strict=True):
        folder = tmp_path / str(one.how)
        while not (folder / "begun").exists():
            assert job.poll() is None, job.communicate()[0]
            time.sleep(0.1)
        one.sicken()
        (folder / "ill").touch()
    for one, job in zip(ill, jobs, strict=True):
        output, _ = job.communicate(timeout=120)  # MLflow alone takes four minutes for each call
        assert job.returncode == 1, output
        assert "Traceback" not in output
        assert output.count("mlflow-perf recover") == 1, output
        one.proxy.heal()
        sent = json.loads(one.recover().output.splitlines()[-1])
        pipeline = one.run(sent[-1]["run_id"])
        steps = one.client.search_runs(
            [pipeline.info.experiment_id], f"tags.mlflow.parentRunId = '{pipeline.info.run_id}'"
        )
        found = {step.data.tags["mlflow_perf.step"]: step for step in steps}
        assert {name: run.info.status for name, run in found.items()} == {
            "one": "FINISHED", "two": "FINISHED", "bad": "FAILED", "never": "KILLED",
        }  # fmt: skip
        assert len(steps) == len(found)  # both attempts are of one run
        assert pipeline.info.status == "FAILED"
        assert found["never"].data.tags["mlflow_perf.status"] == "SKIPPED"
        told = found["bad"].data.tags
        assert told["mlflow_perf.error"] == "the command ended with exit code 4: broken"
        assert told["mlflow_perf.attempts"] == "2"
        assert "one" in found["bad"].data.params
        files = {f.path for f in one.client.list_artifacts(found["bad"].info.run_id)}
        assert files == {"logs", "outputs", "perf", "perf_report.html"}
        assert one.client.list_artifacts(found["one"].info.run_id, "logs")
        assert one.journals == []
        one.proxy.close()
        what = "the steps go on, recover makes it whole"
        fault(f"server {one.how} in the middle of a pipeline", what, "none")


RESTART = """
type: pipeline
display_name: restart
jobs:
  one:
    type: command
    command: echo one; touch {gate}/begun; until [ -e {gate}/ill ]; do sleep 0.1; done
    environment: azureml:any@latest
    outputs: {{done: {{type: uri_folder}}}}
  plain:
    type: command
    command: echo ${{{{inputs.one}}}}; touch {gate}/a; until [ -e {gate}/well ]; do sleep 0.1; done
    environment: azureml:any@latest
    inputs: {{one: "${{{{parent.jobs.one.outputs.done}}}}"}}
  block:
    type: command
    command: echo ${{{{inputs.one}}}}; {python} {gate}/block.py; [ -e {gate}/a2 ]
    environment: azureml:any@latest
    inputs: {{one: "${{{{parent.jobs.one.outputs.done}}}}"}}
"""

BLOCK = """
import os, sys, time, mlflow_perf
gate = sys.argv[0].rpartition("/")[0]
with mlflow_perf.report("inner"):
    attempt = "b2" if os.path.exists(f"{gate}/b") else "b"
    open(f"{gate}/{attempt}", "w").close()
    while not os.path.exists(f"{gate}/well"):
        time.sleep(0.1)
os.rename(f"{gate}/a", f"{gate}/a2") if attempt == "b2" else None
"""


def test_a_server_that_restarts_beside_steps(faults: Faults, fault: Fault, tmp_path: Path) -> None:
    """A step that began without the server, and ends with it, has one run, with its figures."""
    ill = faults.ill("refuses", from_now=False)
    (tmp_path / "pipeline.yml").write_text(RESTART.format(gate=tmp_path, python=sys.executable))
    (tmp_path / "block.py").write_text(BLOCK)
    job = _start_pipeline(ill, tmp_path)

    def wait_for(*names: str) -> None:
        while not all((tmp_path / name).exists() for name in names):
            assert job.poll() is None, job.communicate()[0]
            time.sleep(0.1)

    wait_for("begun")
    ill.sicken()
    (tmp_path / "ill").touch()
    wait_for("a", "b")
    ill.proxy.heal()
    (tmp_path / "well").touch()
    output, _ = job.communicate(timeout=120)
    assert job.returncode == 0, output
    if "mlflow-perf recover" in output:  # on a busy machine the server is slow to be back
        ill.recover()
    assert ill.journals == []
    found = ill.client.search_runs(
        [one.experiment_id for one in ill.client.search_experiments()],
        "tags.`mlflow.parentRunId` != ''",
    )
    steps = {run.info.run_name: run for run in found if run.info.run_name in ("plain", "block")}
    (parent,) = {run.data.tags["mlflow.parentRunId"] for run in steps.values()}
    runs = [run for run in found if run.data.tags["mlflow.parentRunId"] == parent]
    assert sorted(run.info.run_name for run in runs) == ["block", "one", "plain"], output
    for run in runs:
        assert run.info.status == "FINISHED"
        assert run.data.metrics["duration_sec"] > 0
    assert steps["block"].data.tags["mlflow_perf.attempts"] == "2"
    assert steps["block"].data.tags["mlflow_perf.component"] == "inner"
    assert ill.client.get_run(parent).data.tags["mlflow_perf.step_count"] == "3"
    ill.proxy.close()
    fault("server back beside a step that began without it", "one run, with all", "none")


def test_ill_at_the_end(faults: Faults, fault: Fault, tmp_path: Path) -> None:
    """`recover` fills and closes the run that the job created."""
    file = tmp_path / "end"
    ill = [faults.ill(how, from_now=False) for how in ("refuses", "hang", 503, 401)]
    jobs = [one.started("waits_for", str(file), MLFLOW_PERF_EXIT_TIMEOUT="1") for one in ill]
    for one in ill:
        one.sicken()
    file.touch()
    for one, (job, run_id) in zip(ill, jobs, strict=True):
        assert job.wait() == 0, job.output
        assert one.run(run_id).info.status == "RUNNING", one.how
        one.proxy.heal()
    sending = [one.recover(wait=False) for one in ill]
    for one, job, (_, run_id) in zip(ill, sending, jobs, strict=True):
        assert one.recovered(job) == run_id, one.how
        assert one.run(run_id).info.status == "FINISHED", one.how
        assert one.has_all(run_id), one.how
        one.proxy.close()
        fault(f"server {one.how} at the end", "bounded exit; recover sends it", "none")


def test_ill_at_the_end_of_an_autologged_run(faults: Faults, fault: Fault, tmp_path: Path) -> None:
    """The run's end and the exit share the time, and one line says what to do."""
    file = tmp_path / "end"
    ill = faults.ill("hang", from_now=False)
    job, run_id = ill.started("autologged", str(file), MLFLOW_PERF_EXIT_TIMEOUT="1")
    ill.sicken()
    file.touch()
    assert job.wait() == 0, job.output
    waited = re.search(r"waited ([\d.]+) s", job.output)
    assert waited is not None
    assert float(waited[1]) < 8, "it was ten seconds whatever the limit"
    assert job.output.count("performance report") == 1, job.output
    ill.proxy.heal()
    assert ill.recovered() == run_id
    assert ill.has_all(run_id)
    ill.proxy.close()
    fault("server hang at an autologged run's end", "one bounded wait; recover sends it", "none")


def test_back_before_the_end_has_given_up(faults: Faults, fault: Fault, tmp_path: Path) -> None:
    """A server that is back within the job's exit gets the report there and then."""
    file = tmp_path / "end"
    ill = [faults.ill(how, from_now=False) for how in (429, 503)]
    # Longer than MLflow waits between two tries, on a machine that others use too.
    patience = {"MLFLOW_PERF_EXIT_TIMEOUT": "100"}
    jobs = [one.started("waits_for", str(file), **patience) for one in ill]
    for one in ill:
        one.sicken()
    file.touch()
    for one, (job, _) in zip(ill, jobs, strict=True):
        wait_until(partial(one.is_asked_after, one.proxy.asked), job)
    time.sleep(0.5)
    for one in ill:
        one.proxy.heal()
    for one, (job, run_id) in zip(ill, jobs, strict=True):
        assert job.wait() == 0, job.output
        assert "mlflow-perf recover" not in job.output
        assert one.run(run_id).info.status == "FINISHED", one.how
        assert one.has_all(run_id), one.how
        assert one.journals == []
        one.proxy.close()
        fault(f"server {one.how} at the end, then back", "sent within the exit", "none")


def test_a_run_that_comes_too_late_is_deleted(faults: Faults, fault: Fault, tmp_path: Path) -> None:
    """A process that lives on leaves no run behind that was made after its report was kept."""
    file = tmp_path / "end"
    earlier = len(faults.named("late", deleted=True))  # a first run of this test may have left some
    faults.proxy.fault = 2
    options = {"MLFLOW_PERF_START_TIMEOUT": "0.1", "MLFLOW_PERF_EXIT_TIMEOUT": "0.3"}
    job = faults.start("outliving", str(file), **options)
    wait_until(lambda: "reported\n" in job.output, job)
    assert "mlflow-perf recover" in job.output
    faults.proxy.heal()
    # It was asked for at the start; the end had no time to ask for one.
    wait_until(lambda: len(faults.named("late", deleted=True)) == earlier + 1, job)
    assert faults.named("late") == []
    file.touch()
    assert job.wait() == 0, job.output
    run_id = faults.recovered()
    (run,) = faults.named("late")
    assert (run.info.run_id, run.info.status) == (run_id, "FINISHED")
    assert faults.has_all(run_id)
    fault("server slow, the run comes too late", "that run deleted; recover sends all", "none")


def test_the_experiment_is_remembered(faults: Faults, fault: Fault) -> None:
    """Recover, in an environment of its own, makes the run where the job had wanted it."""
    ill = faults.ill("refuses")
    job = ill.start("busy", 0.1, **QUICK, MLFLOW_EXPERIMENT_NAME="wanted")
    assert job.wait() == 0, job.output
    ill.proxy.heal()
    run_id = ill.recovered()
    experiment = faults.client.get_experiment_by_name("wanted")
    assert experiment is not None
    assert faults.run(run_id).info.experiment_id == experiment.experiment_id
    assert faults.has_all(run_id)
    ill.proxy.close()
    fault("server away, experiment by name", "recover logs it to that experiment", "none")


def test_away_at_the_start_and_back_at_the_end(
    faults: Faults, fault: Fault, tmp_path: Path
) -> None:
    """The run is made at the end, where it could not be at the start."""
    file = tmp_path / "end"
    faults.proxy.refuse()
    job = faults.start("waits_for", str(file))
    wait_until(lambda: "go\n" in job.output, job)
    faults.proxy.heal()
    file.touch()
    assert job.wait() == 0, job.output
    run = faults.newest_run()
    assert run.info.status == "FINISHED"
    assert faults.has_all(run.info.run_id)
    assert faults.journals == []
    fault("server refuses at the start", "run made and filled at the end", "none")


def test_a_slow_server(faults: Faults, fault: Fault, tmp_path: Path) -> None:
    """A slow start goes on without its run, and the report still goes to that run at the end."""
    file = tmp_path / "end"
    faults.proxy.fault = 2
    begin = time.monotonic()
    job = faults.start("waits_for", str(file), MLFLOW_PERF_START_TIMEOUT="0.5")
    wait_until(lambda: "go\n" in job.output, job)
    started = time.monotonic() - begin
    assert job.output.splitlines().count("None") == 1, "the job began without its run"
    wait_until(lambda: faults.proxy.asked >= 1, job)
    time.sleep(2.5)
    faults.proxy.heal()
    file.touch()
    assert job.wait() == 0, job.output
    run = faults.newest_run()
    assert run.info.status == "FINISHED"
    assert faults.has_all(run.info.run_id)
    fault("server slow, 2 s an answer", f"job begins after {started:.1f} s, all sent", "none")


def test_a_server_that_is_slow_for_the_first_node_alone(
    faults: Faults, fault: Fault, tmp_path: Path
) -> None:
    """The other node makes the run, and the first joins it: its own, which comes later, goes."""
    file = tmp_path / "end"
    slow = faults.ill(60)
    ranks = {"TORCHELASTIC_RUN_ID": tmp_path.name, "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    ranks |= {"MLFLOW_PERF_RANKS_PER_NODE": "1", "MLFLOW_PERF_START_TIMEOUT": "0.1"}
    first = slow.start("waits_for", str(file), RANK="0", **ranks)
    wait_until(lambda: slow.proxy.asked >= 1, first)
    second = faults.start("waits_for", str(file), RANK="1", **ranks)

    def runs() -> list[Run]:
        its = f"tags.`mlflow_perf.job_key` LIKE '%{tmp_path.name}%'"
        return faults.client.search_runs(["0"], its)

    wait_until(lambda: len(runs()) == 1, second)
    slow.proxy.heal()
    slow.proxy.released.set()
    file.touch()
    for job in (first, second):
        assert job.wait() == 0, job.output
    (run,) = runs()
    assert run.info.status == "FINISHED"
    lengths = faults.client.get_metric_history(run.info.run_id, "duration_sec")
    assert {metric.step for metric in lengths} == {0, 1}
    assert faults.has_all(run.info.run_id)
    assert (slow.journals, faults.journals) == ([], [slow.state.name])
    slow.proxy.close()
    fault("server slow for the first node", "one run, of all nodes", "none")


def test_answers_to_a_new_run_that_are_lost(faults: Faults, fault: Fault) -> None:
    """MLflow asks again and again; of the runs that the server made, one stays, with the report."""
    for lost, name in ((1, "broken"), (3, "broken often")):
        faults.proxy.unanswered = lost
        options = {"MLFLOW_EXPERIMENT_NAME": name, "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0"}
        job = faults.start("busy", 0.2, **options)
        assert job.wait() == 0, job.output
        assert faults.proxy.unanswered == 0
        _check_one_run(faults, name, "FINISHED")
    for name, how in (("at the end", "busy"), ("after an error", "raising")):
        faults.proxy.unanswered = 2
        options |= {"MLFLOW_EXPERIMENT_NAME": name, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
        job = faults.start(how, 0.2, **options) if how == "busy" else faults.start(how, **options)
        job.wait()
        _check_one_run(faults, name, "FINISHED" if how == "busy" else "FAILED")
    fault("answers to a new run are lost", "one run, with the report", "none")


def _check_one_run(faults: Faults, experiment: str, status: str) -> None:
    found = faults.client.get_experiment_by_name(experiment)
    assert found is not None
    (run,) = faults.client.search_runs([found.experiment_id])
    assert run.info.status == status
    assert faults.has_all(run.info.run_id)


def test_killed_while_the_server_was_slow(faults: Faults, fault: Fault, tmp_path: Path) -> None:
    """The run that was made after the start is known to the journal: recover makes no second."""
    faults.proxy.fault = 1
    job = faults.start("waits_for", str(tmp_path / "end"), MLFLOW_PERF_START_TIMEOUT="0.1")
    wait_until(lambda: "go\n" in job.output, job)
    experiments = [e.experiment_id for e in faults.client.search_experiments()]
    (journal,) = faults.state.glob("*.journal")
    wait_until(lambda: '"own_run":true' in journal.read_text().replace(" ", ""), job)
    job.kill(9)
    job.wait()
    faults.proxy.heal()
    run_id = faults.recovered()
    (newest,) = faults.client.search_runs(experiments, max_results=1)
    assert newest.info.run_id == run_id
    assert newest.info.status == "KILLED"
    fault("server slow, job killed", "recover fills the run that was made", "at most the last 4 s")


def test_killed_before_the_answer_to_a_new_run(faults: Faults, fault: Fault) -> None:
    """The server makes the run all the same; recover finds it by the journal's nonce."""
    faults.proxy.fault = 1.5
    job = faults.start("raising", MLFLOW_EXPERIMENT_NAME="unanswered")
    experiment = faults.client.create_experiment("unanswered")
    made = "attributes.status = 'RUNNING'"
    wait_until(lambda: faults.proxy.asked >= 2, job)  # the experiment, then the run
    job.kill(9)
    job.wait()
    wait_until(lambda: len(faults.client.search_runs([experiment], made)) == 1, job)
    faults.proxy.heal()
    run_id = faults.recovered()
    (run,) = faults.client.search_runs([experiment])
    assert (run.info.run_id, run.info.status) == (run_id, "KILLED")
    fault("server slow, job killed while it starts", "recover ends the run that was made", "none")


def test_the_run_is_deleted(faults: Faults, fault: Fault, tmp_path: Path) -> None:
    """The report is kept until the run is restored, and then sent."""
    file = tmp_path / "end"
    job, run_id = faults.started("waits_for", str(file))
    faults.client.delete_run(run_id)
    file.touch()
    assert job.wait() == 0
    assert "mlflow-perf recover" in job.output
    assert "deleted" in job.output
    (kept,) = json.loads(faults.recover(code=2).output.splitlines()[-1])
    assert kept["outcome"] == "kept"
    assert len([name for name in faults.journals if name.endswith(".journal")]) == 1
    faults.client.restore_run(run_id)
    assert faults.recovered() == run_id
    assert faults.has_all(run_id)
    fault("run deleted during the job", "kept; restore and recover send it", "none")
