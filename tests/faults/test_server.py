"""The tracking server away, ill, and back: the job is unharmed, and its report arrives."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from tests.faults.conftest import wait_until

pytestmark = pytest.mark.e2e

QUICK = {"MLFLOW_PERF_START_TIMEOUT": "1", "MLFLOW_PERF_EXIT_TIMEOUT": "2"}


def warnings_of(output: str) -> list[str]:
    """Return the lines that are ours."""
    return [line for line in output.splitlines() if "tracking server" in line or "report" in line]


def recovered(faults) -> str:
    """Recover the one journal there is and return its run's id."""
    (sent,) = json.loads(faults.recover().output)
    assert faults.journals == []
    return sent["run_id"]


@pytest.mark.parametrize("ill", ["refuses", "hang", 429, 500, 503, 401])
def test_ill_from_start_to_end(faults, fault, ill: str | int) -> None:
    """The job goes well, its exit is bounded, one line says what to do, and nothing is lost."""
    if ill == "refuses":
        faults.proxy.refuse()
    else:
        faults.proxy.fault = ill
    begin = time.monotonic()
    job = faults.start("busy", 0.2, **QUICK)
    assert job.wait() == 0
    took = time.monotonic() - begin
    assert took < 0.2 + 1 + 2 + 10, "the start and the exit are bounded"
    told = [line for line in job.output.splitlines() if "mlflow-perf recover" in line]
    assert len(told) == 1, job.output
    assert len(job.output.splitlines()) <= 2 + 2, job.output
    faults.proxy.heal()
    run_id = recovered(faults)
    assert faults.run(run_id).info.status == "FINISHED"
    assert faults.run(run_id).data.metrics["ops/rows/count"] == 7
    assert faults.has_all(run_id)
    what = f"answers {ill}" if isinstance(ill, int) else {"hang": "hangs"}.get(ill, ill)
    fault(f"server {what}, start to end", f"job unharmed, {took:.1f} s; recover sends it", "none")


@pytest.mark.parametrize("ill", ["refuses", "hang", 500])
def test_ill_in_the_middle(faults, fault, tmp_path: Path, ill: str | int) -> None:
    """Sampling keeps its own pace, and once the server is back all is sent at the end."""
    file = tmp_path / "end"
    job, run_id = faults.started("waits_for", str(file))
    if ill == "refuses":
        faults.proxy.refuse()
    else:
        faults.proxy.fault = ill
    time.sleep(1)
    faults.proxy.heal()
    file.touch()
    assert job.wait() == 0, job.output
    run = faults.run(run_id)
    assert run.info.status == "FINISHED"
    assert faults.has_all(run_id)
    took, rows = re.search(r"took ([\d.]+) with (\d+) rows", job.output).groups()
    assert int(rows) >= 0.5 * float(took) / 0.05, "no gap while the server was away"
    assert faults.journals == []
    fault(f"server {ill} in the middle", "no gap, sent at the end", "none")


@pytest.mark.parametrize("ill", ["refuses", "hang", 503, 401])
def test_ill_at_the_end(faults, fault, tmp_path: Path, ill: str | int) -> None:
    """The run that was made is the one that recover fills and closes."""
    file = tmp_path / "end"
    job, run_id = faults.started("waits_for", str(file), MLFLOW_PERF_EXIT_TIMEOUT="2")
    if ill == "refuses":
        faults.proxy.refuse()
    else:
        faults.proxy.fault = ill
    file.touch()
    assert job.wait() == 0, job.output
    assert faults.run(run_id).info.status == "RUNNING"
    faults.proxy.heal()
    assert recovered(faults) == run_id
    assert faults.run(run_id).info.status == "FINISHED"
    assert faults.has_all(run_id)
    fault(f"server {ill} at the end", "bounded exit; recover sends it", "none")


def test_away_at_the_start_and_back_at_the_end(faults, fault, tmp_path: Path) -> None:
    """The run is made at the end, where it could not be at the start."""
    file = tmp_path / "end"
    faults.proxy.refuse()
    job = faults.start("waits_for", str(file))
    wait_until(lambda: "go\n" in job.output, job)
    faults.proxy.heal()
    file.touch()
    assert job.wait() == 0, job.output
    experiments = [e.experiment_id for e in faults.client.search_experiments()]
    run = faults.client.search_runs(experiments, max_results=1)[0]
    assert run.info.status == "FINISHED"
    assert faults.has_all(run.info.run_id)
    assert faults.journals == []
    fault("server refuses at the start", "run made and filled at the end", "none")


def test_a_slow_server(faults, fault, tmp_path: Path) -> None:
    """A slow start goes on without its run, which is still the one that is filled in the end."""
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
    experiments = [e.experiment_id for e in faults.client.search_experiments()]
    run = faults.client.search_runs(experiments, max_results=1)[0]
    assert run.info.status == "FINISHED"
    assert faults.has_all(run.info.run_id)
    fault("server slow, 2 s an answer", f"job begins after {started:.1f} s, all sent", "none")


def test_killed_while_the_server_was_slow(faults, fault, tmp_path: Path) -> None:
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
    run_id = recovered(faults)
    (newest,) = faults.client.search_runs(experiments, max_results=1)
    assert newest.info.run_id == run_id
    assert newest.info.status == "KILLED"
    fault("server slow, job killed", "recover fills the run that was made", "at most the last 4 s")


def test_the_run_is_deleted(faults, fault, tmp_path: Path) -> None:
    """The report is kept until the run is restored, and then sent."""
    file = tmp_path / "end"
    job, run_id = faults.started("waits_for", str(file))
    faults.client.delete_run(run_id)
    file.touch()
    assert job.wait() == 0
    assert "mlflow-perf recover" in job.output
    assert "deleted" in job.output
    assert faults.recover().output.rstrip().endswith("[]")
    assert len([name for name in faults.journals if name.endswith(".journal")]) == 1
    faults.client.restore_run(run_id)
    assert recovered(faults) == run_id
    assert faults.has_all(run_id)
    fault("run deleted during the job", "kept; restore and recover send it", "none")
