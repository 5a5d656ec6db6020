"""Batch jobs under a real Slurm: arrays, cancelled and requeued jobs, a lost node, advice."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from tests.slurm.cluster import Cluster

from mlflow_perf.publish.recovery import recover

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("store")]

WRAPPED = f"{shlex.quote(sys.executable)} -m mlflow_perf run"


def _runs() -> list[Run]:
    return list(MlflowClient().search_runs([os.environ["MLFLOW_EXPERIMENT_ID"]]))


def _submit(slurm: Cluster, folder: Path, line: str, *options: str) -> str:
    """Submit a batch script of one line, and return the job's id."""
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{line}\n")
    done = slurm.call("sbatch", "--parsable", "-o", f"{folder}/out-%j", *options, str(script))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _wait_until(is_done: Callable[[], object], what: str, seconds: float = 90.0) -> None:
    until = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < until, what
        time.sleep(0.1)


def _is_over(slurm: Cluster, job: str) -> bool:
    return not slurm.call("squeue", "-hj", job, "-o", "%T").stdout.strip()


def _list_recording(folder: Path) -> list[Path]:
    """Return the journals that have samples: their jobs record."""
    return [path for path in folder.glob("*.journal") if b'"rows"' in path.read_bytes()]


def test_each_end_of_a_job_is_told(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Array tasks have a run each; a cancelled job and one over its time limit end as KILLED.

    Slurm signals the steps of a job, and kills a batch script KillWait seconds later: its journal
    is sent by `recover`. All jobs run at once, because Slurm looks at limits every 30 seconds.
    """
    folder = tmp_path / "journals"
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(folder))
    monkeypatch.setenv("SLURM_CONF", slurm.environ["SLURM_CONF"])  # for `recover` on this machine
    sleep = f"{WRAPPED} --interval 0.2 -- sleep 100"
    limited = [_submit(slurm, tmp_path, line) for line in (f"srun {sleep}", f"{sleep}\ntrue")]
    _wait_until(lambda: len(_list_recording(folder)) == 2, "the jobs do not record")
    for job in limited:  # the smallest limit that a job can ask for is a minute
        slurm.call("scontrol", "update", f"JobId={job}", "TimeLimit=0")
    cancelled = _submit(slurm, tmp_path, f"srun {sleep}")
    array = _submit(slurm, tmp_path, f"srun {WRAPPED} -- sleep 1", "--array=3-4")
    _wait_until(
        lambda: any(
            f'"job_id":"{cancelled}"'.encode() in p.read_bytes() for p in _list_recording(folder)
        ),
        "idle",
    )
    slurm.call("scancel", cancelled)
    jobs = [*limited, cancelled, array]
    _wait_until(lambda: all(_is_over(slurm, job) for job in jobs), "the jobs run on")
    list(recover(folder, of_any_host=True))
    runs = {run.data.tags["mlflow_perf.job_id"]: run for run in _runs()}
    ended = {job: run.info.status for job, run in runs.items()}
    assert ended == {
        **dict.fromkeys([*limited, cancelled], "KILLED"),
        **dict.fromkeys([f"{array}_3", f"{array}_4"], "FINISHED"),
    }
    assert all(run.data.metrics["duration_sec"] > 0 for run in runs.values())
    for job in limited:
        cause = runs[job].data.tags["mlflow_perf.cause"]
        assert cause == "its time limit was over: Slurm says TIMEOUT"


def test_a_requeued_job_has_a_run_of_its_own(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repetition does not report into the run of the first attempt."""
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path / "journals"))
    line = f"srun {WRAPPED} --interval 0.2 -- sleep $((SLURM_RESTART_COUNT ? 1 : 100))"
    job = _submit(slurm, tmp_path, line, "--requeue")
    _wait_until(lambda: _list_recording(tmp_path / "journals"), "nothing is recorded")
    slurm.call("scontrol", "requeue", job)
    # Slurm holds a requeued job back for two minutes.
    _wait_until(lambda: "PENDING" in slurm.call("squeue", "-hj", job, "-o", "%T").stdout, "runs on")
    slurm.call("scontrol", "update", f"JobId={job}", "StartTime=now")
    _wait_until(lambda: _is_over(slurm, job), "it is not repeated", 200)
    list(recover(tmp_path / "journals", of_any_host=True))
    assert sorted(run.info.status for run in _runs()) == ["FINISHED", "KILLED"]


def test_the_figures_of_a_lost_node_are_recovered(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that loses its power leaves a journal, which is sent from elsewhere."""
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path / "journals"))
    node = slurm.nodes[1]
    job = _submit(slurm, tmp_path, f"exec {WRAPPED} --interval 0.2 -- sleep 100", "-w", node)
    _wait_until(lambda: _list_recording(tmp_path / "journals"), "nothing is recorded")
    try:
        slurm.lose(node)
        # The kernel ends the node's processes, and so the journal's lock, a moment later.
        folder = tmp_path / "journals"
        _wait_until(lambda: list(recover(folder, of_any_host=True)), "the journal stays locked")
        (run,) = _runs()
        assert run.info.status == "KILLED"
        assert run.data.tags["mlflow_perf.hostname"] == node
    finally:
        slurm.call("scancel", job)
        slurm.repair(node)


def test_the_advised_lines_are_accepted(slurm: Cluster, tmp_path: Path) -> None:
    """`sbatch --test-only` takes what `advise` prints for a job."""
    done = slurm.call("srun", *shlex.split(WRAPPED), "--", "sleep", "1")
    assert done.returncode == 0, done.stderr
    (run,) = _runs()
    advised = slurm.call(sys.executable, "-m", "mlflow_perf", "advise", run.info.run_id)
    lines = [line.strip() for line in advised.stdout.splitlines() if "#SBATCH" in line]
    assert lines, advised.stdout + advised.stderr
    script = tmp_path / "advised.sh"
    script.write_text("\n".join(["#!/bin/bash", *lines, "true", ""]))
    tested = slurm.call("sbatch", "--test-only", str(script))
    assert tested.returncode == 0, (lines, tested.stderr)
