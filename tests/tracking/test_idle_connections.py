"""What calls of MLflow leave open belongs to nobody: the job may close all descriptors."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
import pytest

from mlflow_perf.tracking.mlflow_call import MlflowCall

BLOCK = "with mlflow_perf.report('job', quiet=True): pass\n"


def _run(code: str, store: str, folder: Path) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", "import mlflow_perf, os, sys\n" + code],
        env={**os.environ, "MLFLOW_TRACKING_URI": store},
        cwd=folder, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


LIST_OPEN = """
import psutil; me = psutil.Process()
connections = getattr(me, 'net_connections', None) or me.connections  # before psutil 6
databases = [one.path for one in me.open_files() if '.db' in one.path]
print([(one.fd, one.raddr.port) for one in connections('tcp')] + databases)
"""


@pytest.mark.parametrize("kind", ["store", "server"])
def test_a_report_leaves_no_connection_open(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    within = "with mlflow_perf.report('job', quiet=True) as perf:\n    perf.run_id\n"
    within += LIST_OPEN.replace("\n", "\n    ")
    found = _run(BLOCK + LIST_OPEN + within, request.getfixturevalue(kind), tmp_path)
    assert found == "[]\n" * 2


def test_a_daemon_keeps_what_it_writes(server: str, tmp_path: Path) -> None:
    """It closes all descriptors, and ends as a Python program does."""
    code = BLOCK + (
        "if os.fork() == 0:\n"
        "    os.closerange(3, 256)\n"
        "    files = [open(f'{n}.txt', 'w') for n in range(6)]\n"
        "    for one in files: one.write('line')\n"
        "    sys.exit()\n"
        "os.wait()\n"
    )
    _run(code, server, tmp_path)
    assert [(tmp_path / f"{n}.txt").read_text() for n in range(6)] == ["line"] * 6


@pytest.mark.parametrize("kind", ["store", "server"])
def test_a_later_block_is_reported_where_all_descriptors_were_closed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    code = BLOCK + (
        "os.closerange(3, 256)\n"
        "files = [open(f'{n}.txt', 'w+') for n in range(6)]\n"
        "with mlflow_perf.report('second', quiet=True) as perf: pass\n"
        "print(perf.run_id, [one.read() for one in files])\n"
    )
    run_id, _, files = _run(code, uri := request.getfixturevalue(kind), tmp_path).partition(" ")
    assert files == f"{[''] * 6}\n"
    assert mlflow.MlflowClient(uri).get_run(run_id).info.status == "FINISHED"


def test_the_jobs_own_connection_stays_open(server: str, tmp_path: Path) -> None:
    client = "import mlflow; mlflow.MlflowClient().search_experiments()\n"
    before, after = _run(client + LIST_OPEN + BLOCK + LIST_OPEN, server, tmp_path).splitlines()
    assert before != "[]"
    assert after == before


def test_a_job_that_debugs_its_requests_has_none_of_ours_in_its_output(
    server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http.client.HTTPConnection, "debuglevel", 1)
    search: Any = mlflow.MlflowClient(server).search_experiments
    MlflowCall(search, name="test").result(60)
    assert capsys.readouterr().out == ""
    connection = http.client.HTTPConnection(server.removeprefix("http://"), timeout=60)
    connection.request("GET", "/health")
    assert connection.getresponse().read() == b"OK"
    connection.close()
    assert "GET /health" in capsys.readouterr().out
