"""`mlflow-perf recover` beside a real server with workspaces."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow
import pytest
from tests.cli.test_recover import Call
from tests.conftest import _free_port, _wait_for
from tests.publish.test_recovery import delivery_with

pytest.importorskip("mlflow.utils.workspace_context", reason="this MLflow has no workspaces")

API = "api/2.0/mlflow"
# It works in a workspace by MLflow's own call, and is killed while it does.
KILLED = """
import os, time, mlflow
from mlflow_perf import report
mlflow.set_workspace("team-a")
with report("killed") as measured:
    print(measured.run_id, flush=True)
    time.sleep(2)
    os.kill(os.getpid(), 9)
"""
# When the report is sent, the job works elsewhere.
MOVED = """
import mlflow
from mlflow_perf import report
mlflow.set_workspace("team-a")
with report("moved"):
    mlflow.set_workspace("team-b")
"""
# MLflow sends each run's report from a queue, while the job goes on in another workspace.
AUTOLOGGED = """
import mlflow, mlflow_perf
mlflow_perf.autolog()
for team in ("team-a", "team-b"):
    mlflow.set_workspace(team)
    mlflow.set_experiment("ex")
    with mlflow.start_run(run_name=f"autologged-{team}"):
        pass
"""
# The command chooses the workspace of its run by itself; the report joins that run.
STARTED = """
import mlflow
mlflow.set_workspace("team-a")
mlflow.set_experiment("ex")
with mlflow.start_run(run_name="started"):
    pass
"""
STEP = f"{sys.executable} -m mlflow_perf run --name step -- sh -c 'kill -9 $PPID'; kill -9 $PPID"


class Place:
    """A server with the workspaces `team-a` and `team-b`, each with an experiment `ex`.

    Args:
        folder: Folder of its store, and of the journals.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, _free_port()
        self.uri, self.journals = f"http://127.0.0.1:{self.port}", folder / "journals"

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Run the server in the block."""
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port",
                   str(self.port), "--host", "127.0.0.1", "--enable-workspaces",
                   "--backend-store-uri", f"sqlite:///{self.folder / 'mlflow.db'}",
                   "--artifacts-destination", str(self.folder / "artifacts")]  # fmt: skip
        with (self.folder / "server.log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
                env=self.environ(MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false"),
            )  # fmt: skip
        try:
            _wait_for(f"{self.uri}/health", process)
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(20)

    def environ(self, **more: str) -> dict[str, str]:
        """Return the environment of a job."""
        given = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
        ours = {"MLFLOW_TRACKING_URI": self.uri, "MLFLOW_PERF_DIR": str(self.journals),
                "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_PERF_START_TIMEOUT": "60",
                "MLFLOW_PERF_EXIT_TIMEOUT": "60"}  # fmt: skip
        return {**given, **ours, **more}

    def call(self, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run `python ARGUMENTS`."""
        return subprocess.run(
            [sys.executable, *argv], env=self.environ(**more), cwd=self.folder,
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    def perf(self, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run `mlflow-perf ARGUMENTS` with the experiment `ex`."""
        return self.call("-m", "mlflow_perf", *argv, MLFLOW_EXPERIMENT_NAME="ex", **more)

    def ask(self, path: str, workspace: str = "", **body: Any) -> Any:
        """Return the server's answer."""
        headers = {"Content-Type": "application/json"}
        headers |= {"X-MLFLOW-WORKSPACE": workspace} if workspace else {}
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.uri}/{path}", data, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def runs(self, workspace: str) -> dict[str, Any]:
        """Return the runs of a workspace by their names."""
        listed = self.ask(f"{API}/experiments/search", workspace, max_results=100)
        places = [one["experiment_id"] for one in listed.get("experiments", [])]
        found = self.ask(f"{API}/runs/search", workspace, experiment_ids=places)
        return {one["info"]["run_name"]: one for one in found.get("runs", [])}


@pytest.fixture(scope="module")
def place(_migrated_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server in whose workspaces jobs worked, and to which `recover` has sent their journals."""
    place = Place(tmp_path_factory.mktemp("workspaces"))
    shutil.copy(_migrated_store, place.folder / "mlflow.db")
    with place.serving():
        for team in ("team-a", "team-b"):
            place.ask("api/3.0/mlflow/workspaces", name=team)
            place.ask(f"{API}/experiments/create", team, name="ex")
        in_a = {"MLFLOW_WORKSPACE": "team-a"}
        for script in (MOVED, AUTOLOGGED):
            said = place.call("-c", script, MLFLOW_EXPERIMENT_NAME="ex").stderr
            assert "not sent" not in said, said
        said = place.perf("run", "--name", "command", "--", sys.executable, "-c", STARTED).stderr
        assert "not sent" not in said, said
        assert not list(place.journals.glob("*.journal"))
        killed = place.call("-c", KILLED, MLFLOW_EXPERIMENT_NAME="ex")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        place.perf("group", "flow", "--", "sh", "-c", STEP, **in_a)
    place.perf("run", "--name", "away-a", "--", "true", **in_a)
    place.perf("run", "--name", "away", "--", "true")
    place.perf("group", "late", "--", "true", **in_a, MLFLOW_PERF_START_TIMEOUT="2")
    assert len(list(place.journals.glob("*.journal"))) == 6
    with place.serving():
        done = place.perf("recover", MLFLOW_WORKSPACE="team-b")
        assert done.returncode == 0, done.stdout + done.stderr
        yield place


def test_recover_sends_each_journal_to_the_workspace_of_its_job(place: Place) -> None:
    """A report goes to the workspace that its job had, whatever `recover` has in its environment.

    A job without a workspace had that of the server's default.
    """
    of_a, of_b, of_none = (place.runs(name) for name in ("team-a", "team-b", "default"))
    assert {"away-a", "killed", "flow", "step", "late"} <= of_a.keys()
    assert of_none.keys() == {"away"}
    assert of_b.keys() == {"autologged-team-b"}
    assert not list(place.journals.glob("*.journal"))


def test_a_killed_job_and_a_killed_group_are_ended_in_their_workspace(place: Place) -> None:
    """The runs that existed get their end and their report, a group's with its step."""
    runs = place.runs("team-a")
    assert {runs[name]["info"]["status"] for name in ("killed", "flow", "step")} == {"KILLED"}
    tags = {one["key"]: one["value"] for one in runs["flow"]["data"]["tags"]}
    assert tags["mlflow_perf.step_count"] == "1"
    assert "workspace=team-a" in tags["mlflow.note.content"]


@pytest.mark.parametrize("name", ["moved", "autologged-team-a", "started"])
def test_a_report_goes_to_its_run_when_the_job_is_elsewhere_by_then(
    place: Place, name: str
) -> None:
    """A report is sent to the workspace of its run, though the process is in another one now."""
    run = place.runs("team-a")[name]
    assert "duration_sec" in {one["key"] for one in run["data"]["metrics"]}
    assert run["info"]["status"] == "FINISHED"


def test_a_workspace_that_is_missing_is_named(place: Place) -> None:
    """Otherwise a run that exists, or the list of experiments, would be called missing."""
    for argv in (["show", "0" * 8], ["fleet"]):
        asked = place.perf(*argv, MLFLOW_WORKSPACE="nope")
        assert asked.returncode == 2
        assert "Workspace 'nope' not found" in asked.stderr
        assert "does not exist" not in asked.stderr


def test_a_server_without_workspaces_has_one_place_for_all(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Call
) -> None:
    """MLflow refuses the workspace that a job named in vain; no report is lost by that."""
    journal = delivery_with(
        tracking_uri=server, workspace="team-a", run_name="in-vain", nonce="a1b2", own_run=True,
        experiment_name="in-vain",
    )  # fmt: skip
    (tmp_path / "kept.journal").write_bytes(journal)
    monkeypatch.setenv("MLFLOW_WORKSPACE", "team-b")
    done = cli("recover", str(tmp_path))
    assert "sent now" in done.output, done.output
    (run,) = mlflow.search_runs(experiment_names=["in-vain"], output_format="list")
    assert run.info.run_name == "in-vain"
