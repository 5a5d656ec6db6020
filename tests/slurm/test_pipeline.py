"""The demo pipeline over both nodes of a real Slurm, and our figures beside Slurm's own."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient
from tests.slurm.cluster import Cluster, why_no_accounting, why_not_here

ROOT = Path(__file__).resolve().parents[2]
# A minute and more: Parsl's workers start, and each of its four steps.
pytestmark = [pytest.mark.load, pytest.mark.timeout(600)]


def test_the_demo_pipeline_runs_on_both_nodes(slurm: Cluster, tmp_path: Path) -> None:
    """Its training step has a rank on each node, started by srun, and a report of both."""
    pytest.importorskip("parsl")
    text = (ROOT / "pipelines" / "clusters" / "slurm.py").read_text()
    text = text.replace('"compute"', '"short"')
    text = text.replace("module load mpich; source $HOME/mlflow-perf/bin/activate", (
        f"export PATH={Path(sys.executable).parent}:$PATH"))  # fmt: skip
    config = tmp_path / "slurm.py"
    config.write_text(text)
    store = tmp_path / "perf"
    demo = str(ROOT / "pipelines" / "lightgbm_training.py")
    done = slurm.call(
        sys.executable, "-m", "mlflow_perf", "pipeline", "run", demo, "--set", "rows=2000",
        "--on", str(config), "--to", str(store), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    train = next(step for step in found["steps"] if step["step"] == "train_lightgbm")
    client = MlflowClient(f"sqlite:///{store}/mlflow.db")
    hosts = set()
    for node in (0, 1):
        path = client.download_artifacts(train["run_id"], f"perf/node-{node}.json", str(tmp_path))
        document = json.loads(Path(path).read_text())
        hosts.add(document["nodes"][str(node)]["node"]["hostname"])
    assert hosts == set(slurm.nodes)


@pytest.mark.usefixtures("store")
def test_our_figures_agree_with_those_of_sacct(tmp_path_factory: pytest.TempPathFactory) -> None:
    """CPU time and peak memory of a step are those that Slurm's accounting has."""
    if reason := why_not_here() or why_no_accounting():
        pytest.skip(reason)
    cluster = Cluster(tmp_path_factory.mktemp("accounted"), accounting=True)
    burn = (
        "import time; x = bytearray(b'x') * (300 << 20)\n"
        "while time.process_time() < 6: pass\ntime.sleep(3)"
    )
    try:
        cluster.start()
        wrapped = [sys.executable, "-m", "mlflow_perf", "run", "--name", "burn", "--"]
        done = cluster.call("srun", *wrapped, sys.executable, "-c", burn)
        assert done.returncode == 0, done.stderr
        (run,) = MlflowClient().search_runs([os.environ["MLFLOW_EXPERIMENT_ID"]])
        job = run.data.tags["mlflow_perf.job_id"]
        row: list[str] = []
        until = time.monotonic() + 60
        while (len(row) < 2 or not row[1]) and time.monotonic() < until:
            told = cluster.call("sacct", "-nPj", f"{job}.0", "-o", "TotalCPU,MaxRSS").stdout
            row = told.strip().split("|")
            time.sleep(0.5)
        minutes, seconds = row[0].rpartition(":")[0].rpartition(":")[2], row[0].rpartition(":")[2]
        slurm_cpu_sec = 60 * float(minutes) + float(seconds)
        ours = run.data.metrics
        print(shlex.join(row), ours["job_cpu_hours"] * 3600, ours["job_max_mem_mb"])
        # Slurm's figure has the wrapper in it: its start, and the sending of the report.
        assert 0 <= slurm_cpu_sec - ours["job_cpu_hours"] * 3600 < 15
        assert ours["job_cpu_hours"] * 3600 == pytest.approx(6, rel=0.1)
        used_mb = float(row[1].rstrip("K")) / 1024 if row[1].endswith("K") else float(row[1][:-1])
        assert used_mb > ours["job_max_mem_mb"] * 0.9
    finally:
        cluster.stop()
