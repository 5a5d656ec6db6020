"""`mlflow-perf run` under a real Slurm."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from tests.slurm.cluster import Cluster

from mlflow_perf.analysis.rightsize import right_size
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.tracking.search import get_run

pytestmark = pytest.mark.e2e

WRAPPED = [sys.executable, "-m", "mlflow_perf", "run"]
# 200 MB of memory that is really touched, and two seconds of CPU time.
BURN = (
    "import time\nx = bytearray(b'x') * (200 << 20)\nwhile time.process_time() < 2: pass\n"
    "time.sleep(0.5)"
)


def only_run() -> Run:
    """Return the run of the store; there must be just one."""
    client = MlflowClient()
    runs = client.search_runs([os.environ["MLFLOW_EXPERIMENT_ID"]])
    assert len(runs) == 1, runs
    return runs[0]


@pytest.mark.usefixtures("store")
def test_all_ranks_of_a_node_are_measured(slurm: Cluster) -> None:
    """Two ranks on a node, each below a wrapper of its own, are one job with one sum."""
    done = slurm.call("srun", "-n2", *WRAPPED, "--name", "ranks", "--", sys.executable, "-c", BURN)
    assert done.returncode == 0, done.stderr
    run = only_run()
    metrics = run.data.metrics
    assert run.info.status == "FINISHED"
    assert metrics["job_max_mem_mb"] == pytest.approx(400, rel=0.15)
    assert metrics["job_cpu_hours"] * 3600 == pytest.approx(4, rel=0.15)
    assert run.data.tags["mlflow_perf.job_step"] == "0"
    assert run.data.tags["mlflow_perf.partition"] == "short"
    assert 0 <= float(run.data.tags["mlflow_perf.queue_sec"]) < 240


@pytest.mark.usefixtures("store")
def test_tasks_that_srun_starts_are_said_not_to_be_measured(slurm: Cluster) -> None:
    """The wrapper around srun warns once, and gives no verdict on srun itself."""
    done = slurm.call(*WRAPPED, "--", "srun", "-n2", sys.executable, "-c", BURN)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("srun … mlflow-perf run") == 1, done.stderr
    run = only_run()
    assert run.data.tags["mlflow_perf.bottleneck"] == "waiting"
    assert "not measured" in run.data.tags["mlflow_perf.advice"]
    with pytest.raises(RunNotFoundError, match="srun had it started elsewhere"):
        right_size([get_run(run.info.run_id)])


@pytest.mark.usefixtures("store")
def test_two_steps_at_once_have_a_run_each(slurm: Cluster, tmp_path: Path) -> None:
    """Steps of one allocation share the job's id, and are two launches."""
    script = tmp_path / "job.sh"
    command = f"{' '.join(WRAPPED)} --name"
    step = "srun --overlap -n2 -c1 --mem=1000"
    script.write_text(
        f"#!/bin/bash\n{step} {command} a -- sleep 2 &\n{step} {command} b -- sleep 3 &\nwait\n"
    )
    done = slurm.call("sbatch", "-W", "-n2", "-o", str(tmp_path / "out"), str(script))
    assert done.returncode == 0, (done.stderr, (tmp_path / "out").read_text())
    runs = MlflowClient().search_runs([os.environ["MLFLOW_EXPERIMENT_ID"]])
    found = {run.info.run_name: run for run in runs}
    assert sorted(found) == ["a", "b"]
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert len({run.data.tags["mlflow_perf.job_key"] for run in runs}) == 2


@pytest.mark.usefixtures("store")
def test_the_advice_for_a_command_is_enough_for_it(slurm: Cluster) -> None:
    """The wrapper needs memory too, and its allocation is the command's."""
    if not slurm.limits:
        pytest.skip("needs control groups of the first version, for Slurm to limit memory")
    command = [*WRAPPED, "--", sys.executable, "-c", BURN]
    first = slurm.call("srun", "--mem=1500", *command)
    assert first.returncode == 0, first.stderr
    memory_mb = right_size([get_run(only_run().info.run_id)]).memory_mb
    assert memory_mb is not None
    assert memory_mb < 1500
    again = slurm.call("srun", f"--mem={memory_mb}", *command)
    assert again.returncode == 0, again.stderr


@pytest.mark.usefixtures("store")
def test_a_command_without_enough_memory_is_told(slurm: Cluster) -> None:
    """The kernel's kill is counted, and more memory than there was is advised."""
    if not slurm.limits:
        pytest.skip("needs control groups of the first version, for Slurm to limit memory")
    hungry = "import time; x = bytearray(b'x') * (900 << 20); time.sleep(1)"
    done = slurm.call("srun", "--mem=700", *WRAPPED, "--", sys.executable, "-c", hungry)
    assert done.returncode != 0
    run = only_run()
    assert run.info.status == run.data.tags["mlflow_perf.status"] == "KILLED"
    assert run.data.metrics["oom_kills"] >= 1
    assert int(right_size([get_run(run.info.run_id)]).memory_mb or 0) > 700
