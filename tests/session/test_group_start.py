"""What a group leaves that a signal ends before its command begins."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_perf.core.settings import Settings
from mlflow_perf.publish.recovery import recover_each
from mlflow_perf.session import group_start
from mlflow_perf.session.group_start import open_group

GROUP = [sys.executable, "-m", "mlflow_perf", "group"]

ENDED = """
import os, signal, sys
import mlflow_perf.cli.group as group
from mlflow_perf.cli import main
from mlflow_perf.tracking import client
number = int(sys.argv.pop(1))
def end(argv):
    os.kill(os.getpid(), number)
group.HeldChild = end
if sys.argv.pop(1) == "refused":
    client.discard_run = None
main()
"""


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("name", "store_kind"),
    [
        ("SIGINT", "new"),
        ("SIGQUIT", "new"),
        ("SIGINT", "there"),
        ("SIGTERM", "there"),
        ("SIGINT", "silent server"),
        ("SIGHUP", "silent server"),
    ],
)
def test_a_signal_before_the_command_begins_leaves_nothing(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, store_kind: str
) -> None:
    """The group dies of it without a word, so that Ctrl-C ends a shell's loop.

    A server that does not answer may have created the run: `recover` will end it.
    """
    number = signal.Signals[name]
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("MLFLOW_PERF_START_TIMEOUT", "600")
    if store_kind == "new":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/new.db")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        if store_kind == "silent server":
            address = f"http://127.0.0.1:{silent.getsockname()[1]}"
            monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
            monkeypatch.delenv("MLFLOW_EXPERIMENT_ID")  # MLflow would ask for it first
        command = [*GROUP, "early", "--", "touch", "begun"]
        with subprocess.Popen(
            command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            while not list(tmp_path.glob("state/*.journal")):
                assert process.poll() is None
                time.sleep(0.02)
            if store_kind == "silent server":
                silent.settimeout(120)
                silent.accept()[0].close()
            os.killpg(process.pid, number)
            _, said = process.communicate()
    assert (process.returncode, said) == (-number, "")
    assert not (tmp_path / "begun").exists()
    left = [path.read_text() for path in (tmp_path / "state").iterdir()]
    if store_kind == "silent server":
        assert f"{name} ended it before its command began" in left.pop()
    assert left == []


@pytest.mark.e2e
@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("by", ["SIGINT", "SIGTERM"])
def test_a_signal_once_the_run_is_made_deletes_it_or_leaves_it_to_recover(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, is_refused: bool
) -> None:
    """A run that the store does not delete ends as what happened, and not as a kill."""
    state = tmp_path / "state"
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(state))
    number, name = signal.Signals[by], f"{by} {is_refused}"
    how = [str(int(number)), "refused" if is_refused else "deleted"]
    done = subprocess.run(
        [sys.executable, "-c", ENDED, *how, "group", name, "--", "true"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (-number, "")
    sent = list(recover_each(state))
    places = [os.environ["MLFLOW_EXPERIMENT_ID"]]
    runs = MlflowClient(store).search_runs(places, f"attributes.run_name = '{name}'")
    if is_refused:
        assert [one.cause for one in sent] == [f"{by} ended it before its command began"]
        (run,) = runs
        assert (run.info.status, run.data.tags["mlflow_perf.cause"]) == ("KILLED", f"signal {by}")
    else:
        assert (sent, list(runs)) == ([], [])
    assert list(state.iterdir()) == []


@pytest.mark.parametrize(
    ("store_kind", "is_imported", "import_sec", "store_sec"),
    [
        ("server", True, 2.0, 2.0),
        ("server", False, 2.0, 0.0),
        ("new", True, 60.0, 60.0),
        ("locked", True, 60.0, 2.0),
    ],
)
def test_the_limit_is_for_the_store_and_not_for_the_import(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    store_kind: str,
    is_imported: bool,
    import_sec: float,
    store_sec: float,
) -> None:
    """The import takes many seconds in a new environment, and so does making a store."""
    file = tmp_path / "store.db"
    is_server = store_kind == "server"
    uri = "http://127.0.0.1:9" if is_server else f"sqlite:///{file}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    waits = []
    if store_kind == "locked":  # by whoever, for as long as the test lasts
        lock = sqlite3.connect(file, isolation_level=None)
        lock.executescript("CREATE TABLE experiments (x); BEGIN EXCLUSIVE")

    def import_mlflow(timeout_sec: float) -> bool:
        waits.append(("import", timeout_sec))
        return is_imported

    class Call:
        def __init__(self, call: object, *, name: str) -> None:
            assert waits, "MLflow is imported within the call"

        def result(self, timeout_sec: float) -> None:
            waits.append(("server", timeout_sec))

    monkeypatch.setattr(group_start, "import_mlflow", import_mlflow)
    monkeypatch.setattr(group_start, "MlflowCall", Call)
    settings = Settings(dir=str(tmp_path), start_timeout=2.0)
    group = open_group("late", settings)
    group.begin(settings)
    group.journal.remove()
    assert waits == [("import", import_sec), ("server", store_sec)]
