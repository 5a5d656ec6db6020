"""Many real ranks on several emulated nodes that log to one run of one server at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

RANKS, PER_NODE = 64, 8
SCRIPT = """
import time
import mlflow_perf

with mlflow_perf.report("ranks") as perf:
    with perf.time("work"):
        time.sleep(0.5)
    perf.add_counter("ranks")
"""
pytestmark = [pytest.mark.e2e, pytest.mark.load, pytest.mark.timeout(800)]


def _environ(**extra: str) -> dict[str, str]:
    import mlflow_perf

    source = str(Path(mlflow_perf.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": source, **extra}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A real MLflow server on loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [
            sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port),
            "--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db",
            "--artifacts-destination", str(tmp_path / "artifacts"),
        ],
        env=_environ(MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false"),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait_until_healthy(f"{uri}/health")
        yield uri
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait_until_healthy(url: str) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail("the MLflow server did not start within two minutes")


def test_sixty_four_ranks_report_to_one_run(server: str, tmp_path: Path) -> None:
    """Every rank's operations arrive, one sampler per node, and the whole has all nodes."""
    mpiexec = Path(sys.executable).with_name("mpiexec.hydra")
    if not mpiexec.exists():
        pytest.skip("needs pip install mpich")
    from mlflow import MlflowClient

    client = MlflowClient(server)
    run_id = client.create_run("0").info.run_id
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [str(mpiexec), "-n", str(RANKS), sys.executable, str(script)],
        env=_environ(
            MLFLOW_TRACKING_URI=server,
            MLFLOW_RUN_ID=run_id,
            MLFLOW_PERF_RANKS_PER_NODE=str(PER_NODE),
            # Eight interpreters import MLflow at once, here on as few cores as there are.
            MLFLOW_PERF_EXIT_TIMEOUT="60",
        ),
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    nodes = set(range(RANKS // PER_NODE))
    counted = {m.step: m.value for m in client.get_metric_history(run_id, "ops/work/count")}
    assert counted == dict.fromkeys(nodes, float(PER_NODE))
    files = {a.path for a in client.list_artifacts(run_id, "perf")}
    assert files == {f"perf/node-{n}.json" for n in nodes}
    run = client.get_run(run_id)
    assert run.data.metrics["run_node_count"] == len(nodes)
    assert run.info.status == "RUNNING"
