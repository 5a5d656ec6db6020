"""The ranks of a real MPI job meet in one report."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

import mlflow_perf
from mlflow_perf.analysis.findings import findings_of

MPI = "mpirun.openmpi"
pytestmark = pytest.mark.e2e

# Rank 1 is slow in `forward`; rank 0 waits for it in `backward`, as in an all-reduce.
TRAIN = """
import os, time
import mlflow_perf
slow = os.environ["OMPI_COMM_WORLD_RANK"] == "1"
with mlflow_perf.report("train") as perf:
    for _ in perf.steps(range(40)):
        with perf.part("forward"):
            time.sleep(0.04 if slow else 0.01)
        with perf.part("backward"):
            time.sleep(0.01 if slow else 0.04)
    if not slow:
        print("RUN", perf.run_id, flush=True)
"""


# Each rank works for a second of CPU time, while the other one is in its block too.
BUSY = """
import os, pathlib, time
import mlflow_perf

def meet(place):
    pathlib.Path(f"{place}{os.environ['PMI_RANK']}").touch()
    while len(list(pathlib.Path().glob(f"{place}*"))) < 2:
        time.sleep(0.02)

with mlflow_perf.report("busy") as perf:
    meet("began")
    begin = time.process_time()
    while time.process_time() < begin + 1.0:
        sum(range(10000))
    meet("ended")
if os.environ["PMI_RANK"] == "0":
    pathlib.Path("run").write_text(perf.run_id)
"""


@pytest.mark.skipif(shutil.which(MPI) is None, reason="needs Open MPI")
def test_the_report_names_the_slow_rank_and_its_part(store: str, tmp_path: Path) -> None:
    """Both ranks' steps are in the node's document, and the finding names rank 1 and `forward`."""
    (tmp_path / "train.py").write_text(TRAIN)
    done = subprocess.run(
        [MPI, "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, "train.py"],
        cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = mlflow_perf.load(done.stdout.split("RUN ")[1].split()[0])
    ranks = document.nodes[0].steps["step"]["ranks"]
    assert {rank: record["step"]["count"] for rank, record in ranks.items()} == {"0": 40, "1": 40}
    said = " ".join(finding.evidence for finding in findings_of(document))
    assert "rank 1" in said.lower()
    assert "forward" in said


def test_a_block_in_wrapped_ranks_measures_all_of_them(store: str, tmp_path: Path) -> None:
    """MPICH's launcher starts a wrapper for each rank; the job of the block is both ranks."""
    launcher = Path(sys.executable).with_name("mpiexec")
    (tmp_path / "busy.py").write_text(BUSY)
    wrapper = [sys.executable, "-m", "mlflow_perf", "run", "--", sys.executable, "busy.py"]
    done = subprocess.run(
        [launcher, "-n", "2", *wrapper], cwd=tmp_path, env=dict(os.environ),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = mlflow_perf.load((tmp_path / "run").read_text()).nodes[0].summary
    assert 3600 * summary["job_cpu_hours"] > 1.7


# Rank 1 works on until the launcher ends it.
FAIL = """
import os, time
import mlflow_perf
from mlflow_perf.recorders.spool_folder import SpoolFolder
wait = SpoolFolder.wait_for_others
def timed(*args, **options):
    began = time.monotonic()
    wait(*args, **options)
    print("WAITED", time.monotonic() - began, flush=True)
SpoolFolder.wait_for_others = timed
rank = os.environ["OMPI_COMM_WORLD_RANK"]
with mlflow_perf.report("train"):
    while not os.path.exists("began"):
        if rank == "1":
            open("began", "w").close()
        time.sleep(0.05)
    if rank == "0":
        raise ValueError("the first rank")
    time.sleep(100)
"""


@pytest.mark.skipif(shutil.which(MPI) is None, reason="needs Open MPI")
def test_a_rank_that_fails_hardly_waits_for_the_others(store: str, tmp_path: Path) -> None:
    """The launcher ends the others only once it is gone; the report has its cause."""
    (tmp_path / "train.py").write_text(FAIL)
    done = subprocess.run(
        [MPI, "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, "train.py"],
        cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert 2 <= float(done.stdout.split("WAITED ")[1].split()[0]) < 8, done.stderr
    (run,) = MlflowClient(store).search_runs([os.environ["MLFLOW_EXPERIMENT_ID"]])
    assert run.data.tags["mlflow_perf.cause"] == "ValueError"


def test_the_wait_for_ranks_that_never_come_is_no_time_of_the_command(
    store: str, tmp_path: Path
) -> None:
    """Only the first rank is wrapped; a start of seconds, as from a cold disk, is awaited."""
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(1.5)")
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "mlflow_perf", "run", "--", "true"], cwd=tmp_path, check=True,
        env={**os.environ, **place, "MASTER_ADDR": "localhost", "MASTER_PORT": "1",
             "PYTHONPATH": str(tmp_path)}, timeout=200,
    )  # fmt: skip
    assert time.monotonic() - began > 4.5
    (run,) = MlflowClient(store).search_runs([os.environ["MLFLOW_EXPERIMENT_ID"]])
    assert run.data.metrics["duration_sec"] < 1.5
