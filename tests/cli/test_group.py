"""`mlflow-perf group`: the runs that a command starts become one workflow."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow import MlflowClient
from tests.terminal import Terminal

import mlflow_perf
from mlflow_perf.analysis.workflow import build_workflow
from mlflow_perf.cli.group import describe
from mlflow_perf.publish.recovery import recover, recover_each
from mlflow_perf.tracking.recorded_runs import RECORDING_TAG
from mlflow_perf.tracking.search import find_children, get_run

GROUP = [sys.executable, "-m", "mlflow_perf", "group"]
RUN = f"{sys.executable} -m mlflow_perf run --interval 0.1 --name"
MAKEFILE = f"""\
last: first
\t{RUN} last -- sleep 0.6
first:
\t{RUN} first -- sleep 0.6
"""


def _group(*argv: str, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*GROUP, *argv], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_steps_started_by_make_are_one_workflow(client: MlflowClient, tmp_path: Path) -> None:
    """Its steps are children of one run, which has their order, their way and the report."""
    (tmp_path / "Makefile").write_text(MAKEFILE)
    done = _group("my make", "--", "make", folder=tmp_path)
    assert "2 steps" in done.stderr
    assert "first → last" in done.stderr
    parent = client.get_run(done.stderr.split()[-1])
    assert (parent.info.run_name, parent.info.status) == ("my make", "FINISHED")
    workflow = build_workflow(get_run(parent.info.run_id))
    assert workflow is not None
    assert workflow.critical_path == ("first", "last")
    assert [step.status for step in workflow.steps] == ["FINISHED", "FINISHED"]
    files = {item.path for item in client.list_artifacts(parent.info.run_id)}
    assert {"perf", "perf_report.html"} <= files


_STALE = """
import errno, sys
from mlflow_perf.cli import group
def refuse(*_):
    raise OSError(errno.ESTALE, "Stale file handle")
setattr(group, sys.argv.pop(1), refuse)
group.command()
"""


@pytest.mark.e2e
@pytest.mark.parametrize("what", ["count_unsent_steps", "find_step_journals"])
def test_a_stale_file_system_of_the_journals_leaves_the_exit_code(
    what: str, client: MlflowClient, tmp_path: Path
) -> None:
    """As that of a network whose server was replaced."""
    argv = [sys.executable, "-c", _STALE, what, what, "--", "sh", "-c", "exit 7"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert "no step reported" in done.stderr
    assert "Traceback" not in done.stderr
    experiments = [one.experiment_id for one in client.search_experiments()]
    (run,) = client.search_runs(experiments, f"run_name = '{what}'")
    assert run.info.status == "FAILED"


@pytest.mark.e2e
def test_a_command_that_removes_our_package_keeps_its_exit_code(
    client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `make clean` does, where the environment is in the folder of the project."""
    package = tmp_path / "mlflow_perf"
    shutil.copytree(Path(mlflow_perf.__file__).parent, package)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = ["sh", "-c", f"rm -r {package}; exit 7"]
    done = _group(tmp_path.name, "--", *command, folder=tmp_path, code=7)
    assert "mlflow-perf: The group's report could not be made: " in done.stderr
    assert "It is kept; send it with: mlflow-perf recover" in done.stderr
    assert "Traceback" not in done.stderr
    experiments = [one.experiment_id for one in client.search_experiments()]
    (run,) = client.search_runs(experiments, f"run_name = '{tmp_path.name}'")
    monkeypatch.delenv("PYTHONPATH")
    assert [one.outcome for one in recover_each()] == ["sent"]
    assert client.get_run(run.info.run_id).info.status == "FAILED"


@pytest.mark.e2e
def test_a_group_whose_terminal_is_gone_ends_as_its_command(client: MlflowClient) -> None:
    """Its last lines can be written nowhere, and its report is sent."""
    terminal = Terminal(
        [*GROUP, "gone", "--", "sh", "-c", "echo begun; sleep 60"], dict(os.environ)
    )
    terminal.read_until("begun")
    assert terminal.hang_up() == -signal.SIGHUP
    (run,) = client.search_runs(["0"], "attributes.run_name = 'gone'")
    assert run.info.status == "KILLED"
    assert run.data.tags["mlflow_perf.cause"] == "signal SIGHUP"


@pytest.mark.e2e
def test_sending_reports_between_short_steps_is_not_the_workflows_waiting(
    client: MlflowClient, tmp_path: Path
) -> None:
    """The wrapper imports MLflow at the end of each command; a sleep between steps is waiting."""
    loop = f"for i in 1 2 3; do {RUN} s$i -- sleep 0.1; done; sleep 1; {RUN} s4 -- sleep 0.1"
    done = _group("short", "--", "sh", "-c", loop, folder=tmp_path)
    run_id = done.stderr.split()[-1]
    assert "mlflow_perf.reporting_ms.0" in client.get_run(run_id).data.tags
    workflow = build_workflow(get_run(run_id))
    assert workflow is not None
    *early, late = workflow.steps
    assert all(step.reporting_sec > step.waited_sec for step in early)
    assert late.reporting_sec > 0
    assert late.waited_sec >= 0.9
    assert workflow.totals["reporting_sec"] > sum(step.reporting_sec for step in workflow.steps)
    assert "mlflow-perf itself took" in " ".join(workflow.findings)
    shown = subprocess.check_output([*GROUP[:-1], "show", run_id], text=True)
    assert "  mlflow-perf  " in shown


AUTOLOGGED = """
import mlflow, time
with mlflow.start_run(): time.sleep(0.1)
"""


@pytest.mark.e2e
def test_so_it_is_where_the_steps_are_runs_of_autolog(
    client: MlflowClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The report of a run is sent at its end, in the step's own process."""
    monkeypatch.setenv("MLFLOW_PERF_AUTOLOG", "true")
    (tmp_path / "step.py").write_text(AUTOLOGGED)
    loop = f"for i in 1 2; do {sys.executable} step.py; done"
    done = _group("autologged", "--", "sh", "-c", loop, folder=tmp_path)
    workflow = build_workflow(get_run(done.stderr.split()[-1]))
    assert workflow is not None
    assert len(workflow.steps) == 2
    assert workflow.steps[1].reporting_sec > 0


@pytest.mark.e2e
def test_the_steps_of_a_group_in_a_group_are_steps_of_both(
    client: MlflowClient, tmp_path: Path
) -> None:
    """The outer totals are those of all steps, read back from their report too."""
    burn = f'{sys.executable} -S -c "import time\nwhile time.process_time() < 0.6: pass"'
    inner = f"{sys.executable} -m mlflow_perf group inner -- {RUN} last -- {burn}"
    done = _group("outer", "--", "sh", "-c", f"{RUN} first -- {burn}\n{inner}", folder=tmp_path)
    *_, of_inner, of_outer = done.stderr.splitlines()
    assert "1 step" in of_inner
    assert "longest way: first → inner/last" in of_outer
    parent = get_run(of_outer.split()[-1])
    workflow = build_workflow(parent)
    assert workflow is not None
    runs = [get_run(step.run_id).metrics for step in workflow.steps if step.run_id]
    keys = {"job_cpu_hours": "job_cpu_hours", "unused_cpu_hours": "run_unused_cpu_hours"}
    for key, logged in keys.items():
        whole = pytest.approx(sum(metrics[logged] for metrics in runs))
        assert parent.metrics[f"run_{key}"] == workflow.totals[key] == whole


STEP = """
import mlflow, os, sys
os.environ["MLFLOW_EXPERIMENT_NAME"] = sys.argv[1]
with mlflow.start_run(run_name=sys.argv[1]) as run:
    print(mlflow.get_experiment(run.info.experiment_id).name)
"""


@pytest.mark.e2e
def test_steps_choose_their_experiments_as_without_a_group(
    client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow refuses an id beside a name; steps without a report are found where they are."""
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID", raising=False)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "all")
    (tmp_path / "step.py").write_text(STEP)
    step = f"{sys.executable} step.py"
    done = _group("wf", "--", "sh", "-ec", f"{step} prep\n{step} train", folder=tmp_path)
    assert done.stdout == "prep\ntrain\n"
    assert "2 steps" in done.stderr
    assert "prep → train" in done.stderr


APART = """
import mlflow, sys
mlflow.set_tracking_uri(sys.argv[1])
with mlflow.start_run(run_name="train"), mlflow.start_run(run_name="trial", nested=True):
    pass
"""


@pytest.mark.e2e
def test_a_step_in_another_store_gets_no_parent_and_is_counted(
    client: MlflowClient, store: str, tmp_path: Path
) -> None:
    """Its parent is in no store but the group's; that holds for runs of MLflow and for ours."""
    client.search_experiments()  # makes the store
    (tmp_path / "step.py").write_text(APART)
    shutil.copy(store.removeprefix("sqlite:///"), tmp_path / "b.db")
    other = f"sqlite:///{tmp_path}/b.db"
    step = f"{sys.executable} step.py {other}"
    steps = f"{step}\n{RUN} w -- {step}\nMLFLOW_TRACKING_URI={other} {RUN} x -- true"
    steps += f"\n{RUN} here -- true"
    done = _group("two stores", "--", "sh", "-ec", steps, folder=tmp_path)
    *_, apart, last = done.stderr.splitlines()
    assert apart == "mlflow-perf: 3 steps reported to another store"
    assert "1 step in" in last
    elsewhere = MlflowClient(other)
    places = [one.experiment_id for one in elsewhere.search_experiments()]
    parent = f"tags.`mlflow.parentRunId` = '{last.split()[-1]}'"
    assert not elsewhere.search_runs(places, parent)


@pytest.mark.e2e
def test_a_store_with_another_address_is_the_same_store(
    client: MlflowClient, store: str, tmp_path: Path
) -> None:
    """The store is asked for the parent where the group's address of it is another one."""
    client.search_experiments()
    (tmp_path / "same.db").symlink_to(store.removeprefix("sqlite:///"))
    other = f"MLFLOW_TRACKING_URI=sqlite:///{tmp_path}/same.db"
    done = _group("g", "--", "sh", "-c", f"{other} {RUN} s -- true", folder=tmp_path)
    assert "another store" not in done.stderr
    assert "1 step in" in done.stderr


@pytest.mark.e2e
def test_the_command_has_the_environment_of_its_caller(
    client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the group's own variables are added: none that MLflow sets for its own process."""
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY")
    show = "import os; print(*sorted(os.environ), sep='\\n')"
    argv = [sys.executable, "-S", "-c", show]
    before = subprocess.check_output(argv, text=True).split()
    added = set(_group("g", "--", *argv, folder=tmp_path).stdout.split()) - set(before)
    assert added == {f"MLFLOW_PERF_{n}" for n in ("PARENT", "PARENT_STORE", "GROUP_NOTES")}


def test_the_closing_line_counts_the_steps_and_those_that_failed() -> None:
    """One step is "1 step"; a failed one is named, as the exit code may not say it."""
    ended = [SimpleNamespace(name=n, status=s) for n, s in (("a", "FINISHED"), ("b", "FAILED"))]
    workflow: Any = SimpleNamespace(
        steps=ended, duration_sec=2.04, critical_path=("a", "b"), status="FAILED"
    )
    assert describe(workflow) == "2 steps in 2.0 s, failed: b, longest way: a → b"
    workflow.steps, workflow.critical_path = ended[:1], ("a",)
    assert describe(workflow) == "1 step in 2.0 s, failed, longest way: a"
    workflow.status = "FINISHED"
    assert describe(workflow) == "1 step in 2.0 s, longest way: a"
    workflow.critical_path = ()  # a pipeline that ran none of its steps
    assert describe(workflow) == "1 step in 2.0 s"


@pytest.mark.parametrize(
    ("uri", "kept"),
    [("http://127.0.0.1:9", 1), ("sqlite:////proc/nobody/may.db", 1), ("nonsense://x", 0)],
)
def test_a_command_passes_through_without_a_store(
    uri: str, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output and end are the command's own; one warning says that there is no group.

    It is kept for `recover`, unless its store's address can never be used.
    """
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_PERF_START_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path))
    look = "ls *.group-*.journal | wc -l; env | grep -c ^MLFLOW_PERF_GROUP_NOTES=; kill -INT $$"
    done = _group("loop", "--", "bash", "-c", look, folder=tmp_path, code=-signal.SIGINT)
    assert done.stdout == "1\n0\n"
    warning, *said = done.stderr.splitlines()
    assert "runs without a group" in warning
    line = f"mlflow-perf: the run of the group is kept | mlflow-perf recover {tmp_path}"
    assert (said, len(list(tmp_path.glob("*.journal")))) == ([line] * kept, kept)


@pytest.mark.e2e
def test_a_killed_group_leaves_only_what_recover_tidies(
    client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its notes are beside its journal, and among the temporary files there is nothing of it."""
    client.search_experiments()  # makes the store
    places = tmp_path / "state", tmp_path / "temporary"
    places[1].mkdir()
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(places[0]))
    monkeypatch.setenv("TMPDIR", str(places[1]))
    with _start("touch begun; sleep 600", tmp_path) as process:
        process.kill()
    assert {path.suffix for path in places[0].iterdir()} == {".journal", ".notes"}
    assert list(places[1].glob("mlflow-perf-*")) == []
    assert [one.outcome for one in recover(places[0])] == ["sent"]
    assert list(places[0].iterdir()) == []


@pytest.mark.e2e
def test_a_group_without_steps_says_what_to_do_unless_a_signal_ended_it(
    client: MlflowClient, tmp_path: Path
) -> None:
    """A step that began just before the signal had nothing to report."""
    done = _group("none", "--", "true", folder=tmp_path)
    assert "no step reported: start steps with `mlflow-perf run`" in done.stderr
    killed = ["killed", "--", "sh", "-c", "kill -TERM $$"]
    done = _group(*killed, folder=tmp_path, code=-signal.SIGTERM)
    assert "no step reported: signal SIGTERM ended the command |" in done.stderr


@pytest.mark.e2e
@pytest.mark.parametrize("is_made", [True, False])
def test_recover_knows_how_a_group_ended_that_had_no_run_in_time(
    client: MlflowClient,
    store: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_made: bool,
) -> None:
    """Its run, which its server or `recover` makes too late, ends as the command did."""
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path))
    monkeypatch.setenv("MLFLOW_PERF_START_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        away = f"http://127.0.0.1:{hangs.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", away)
        _group("loop", "--", "sh", "-c", "sleep 0.5; exit 3", folder=tmp_path, code=3)
    (journal,) = tmp_path.glob("*.journal")
    journal.write_text(journal.read_text().replace(away, store))
    header = json.loads(journal.read_text().splitlines()[-1])["delivery"]
    late, began_ms = None, 1000 * header["started"]
    if is_made:
        tags = {RECORDING_TAG: header["nonce"]}
        late = client.create_run("0", start_time=int(began_ms) + 900, tags=tags).info.run_id
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    (one,) = recover_each(tmp_path)
    assert (one.outcome, one.run_id) == ("sent", late or one.run_id)
    assert one.cause.startswith("its run was not made: it was not done within 1 s")
    run = client.get_run(str(one.run_id))
    assert (run.info.status, run.data.tags["mlflow_perf.cause"]) == ("FAILED", "exit code 3")
    assert run.info.start_time == int(began_ms) + 900 * is_made
    assert 1500 <= (run.info.end_time or 0) - run.info.start_time < 300_000
    if not is_made:
        assert (run.info.run_name, run.data.tags["mlflow_perf.group"]) == ("loop", "loop")
    assert not list(tmp_path.glob("*.journal"))


@pytest.mark.e2e
def test_a_group_that_was_killed_while_it_had_no_run_gets_one(
    client: MlflowClient, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its command had begun; it is in the experiment that its environment named."""
    client.search_experiments()  # makes the store
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID", raising=False)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "nightly")
    with _start("touch begun; sleep 600", tmp_path) as process:
        process.kill()
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    (journal,) = tmp_path.glob("*.journal")
    journal.write_text(journal.read_text().replace("http://127.0.0.1:9", store))
    (one,) = recover_each(tmp_path)
    assert one.outcome == "sent"
    info = client.get_run(str(one.run_id)).info
    assert (info.run_name, info.status) == ("late", "KILLED")
    assert client.get_experiment(info.experiment_id).name == "nightly"


@pytest.mark.e2e
def test_a_container_can_be_stopped_before_its_command_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel keeps SIGTERM from the first process of a container that does not handle it."""
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.call([*apart, "true"]):
        pytest.skip("this machine lets nobody make a PID namespace")
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        hangs.settimeout(120)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{hangs.getsockname()[1]}")
        monkeypatch.setenv("MLFLOW_PERF_START_TIMEOUT", "60")
        command = [*apart, *GROUP, "stopped", "--", "false"]
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
            connection, _ = hangs.accept()
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            os.kill(int(children.read_text()), signal.SIGTERM)
            assert process.wait(120) == 128 + signal.SIGTERM
            connection.close()


def test_a_group_that_cannot_be_ended_is_kept_for_recover(
    client: MlflowClient, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose store is away at the end would be RUNNING for ever; the warning says so."""
    client.search_experiments()  # makes the store
    shutil.copy(store.removeprefix("sqlite:///"), tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path))
    away = f"mv {tmp_path}/mlflow.db {tmp_path}/away.db; mkdir {tmp_path}/mlflow.db; exit 3"
    done = _group("loop", "--", "bash", "-c", away, folder=tmp_path, code=3)
    assert "It is kept; send it with: mlflow-perf recover" in done.stderr
    (tmp_path / "mlflow.db").rmdir()
    (tmp_path / "away.db").rename(tmp_path / "mlflow.db")
    (one,) = recover(tmp_path)
    assert one.run_id is not None
    run = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db").get_run(one.run_id)
    assert (run.info.status, run.data.tags["mlflow_perf.cause"]) == ("FAILED", "exit code 3")


@pytest.mark.e2e
def test_a_kept_report_is_named_and_renews_the_workflow_when_it_comes(
    client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of an ended group is that of all its steps once `recover` has sent the rest."""
    client.search_experiments()  # makes the store
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path))
    held = RUN.replace(" run ", " run --hold ")
    steps = f"{RUN} whole -- sleep 0.3; {held} late -- sleep 0.6"
    done = _group("late", "--", "sh", "-c", steps, folder=tmp_path)
    *_, kept, last = done.stderr.splitlines()
    assert kept == f"mlflow-perf: the report of 1 step is kept | mlflow-perf recover {tmp_path}"
    parent = last.split()[-1]
    before = get_run(parent).metrics["run_cpu_hours"]
    command, elsewhere = [*GROUP[:-1], "recover", str(tmp_path), "--json"], tmp_path / "else"
    environ = os.environ | {"MLFLOW_TRACKING_URI": elsewhere.as_uri()}  # of another shell, later
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    (sent,) = json.loads(done.stdout)
    assert (sent["outcome"], done.stderr) == ("sent", "")
    assert get_run(parent).metrics["run_cpu_hours"] > before
    local = client.download_artifacts(parent, "perf/workflow.json", str(tmp_path))
    flow = json.loads(Path(local).read_text(encoding="utf-8"))
    assert [len(step["nodes"]) for step in flow["steps"]] == [1, 1]
    assert client.get_run(parent).data.tags["mlflow_perf.step_count"] == "2"
    client.delete_run(sent["run_id"])
    shown = subprocess.check_output([*GROUP[:-1], "show", parent], text=True)
    assert "1 of 2 steps cannot be read" in " ".join(shown.split())
    for words in (["explain"], ["advise"], ["compare", parent], ["download"]):
        command = [*GROUP[:-1], *words, parent]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        assert done.stderr.count("1 of 2 steps cannot be read") == 1, words


SLOW = """
import mlflow, os, time
from pathlib import Path
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.publish.journal import Journal, JournalFacts
from mlflow_perf.tracking.delivery import Delivery
delivery, parent = Delivery(NodeDocument(component="slow")), os.getppid()
journal = Journal(delivery, JournalFacts(), folder=Path(os.environ["MLFLOW_PERF_DIR"]))
journal.secure(delivery)
Path("begun").touch()
while os.getppid() == parent:
    time.sleep(0.05)
time.sleep(1)
with mlflow.start_run(run_name="slow"):
    journal.remove()
"""
BEGUN = "until [ -e begun ]; do sleep 0.05; done"
WAITS = f"{RUN} only -- sh -c 'touch begun; until [ -e go ]; do sleep 0.05; done'"


def _start(script: str, folder: Path, group: Sequence[str] = GROUP) -> subprocess.Popen[str]:
    """Start a group of a shell script, and wait for the file `begun`."""
    command = [*group, "late", "--", "sh", "-c", script]
    process = subprocess.Popen(
        command, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (folder / "begun").exists():
        assert process.poll() is None
        time.sleep(0.05)
    return process


def _read_steps(client: MlflowClient, said: str, folder: Path) -> list[str]:
    """Return the steps in the report of a group, whose totals are those of its children."""
    (run_id,) = re.findall(r"mlflow-perf report (\w+)", said)
    local = client.download_artifacts(run_id, "perf/workflow.json", str(folder))
    flow = json.loads(Path(local).read_text(encoding="utf-8"))
    parent = get_run(run_id)
    hours = sum(child.metrics["job_cpu_hours"] for child in find_children(parent))
    assert parent.metrics["run_job_cpu_hours"] == pytest.approx(hours)
    assert list(recover_each(folder)) == []
    return [step["name"] for step in flow["steps"]]


@pytest.mark.e2e
def test_what_a_killed_step_left_is_in_the_report_of_its_group(
    client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run does not stay RUNNING, with a time that grows whenever somebody looks."""
    client.search_experiments()  # makes the store
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path))
    victim = "import mlflow_perf, os, time\nwith mlflow_perf.report('victim'):\n    time.sleep(1)\n"
    (tmp_path / "victim.py").write_text(f"{victim}    os.kill(os.getpid(), 9)\n")
    steps = f"{sys.executable} victim.py; {RUN} rest -- sleep 0.6"
    done = _group("late", "--", "sh", "-c", steps, folder=tmp_path)
    assert "failed: victim, longest way: victim → rest | " in done.stderr
    assert "kept" not in done.stderr
    assert list(recover_each(tmp_path)) == []
    (run_id,) = re.findall(r"mlflow-perf report (\w+)", done.stderr)
    statuses = {run.name: run.status for run in find_children(get_run(run_id))}
    assert statuses == {"victim": "KILLED", "rest": "FINISHED"}


@pytest.mark.e2e
def test_a_signal_for_the_whole_process_group_loses_no_step(
    client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The running step's wrapper sends its report after the command of the group has ended."""
    client.search_experiments()  # makes the store
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path))
    steps = f"{RUN} first -- sleep 0.3; {RUN} second -- sh -c 'touch begun; sleep 600'; echo never"
    with _start(steps, tmp_path) as process:
        os.killpg(process.pid, signal.SIGTERM)
        _, said = process.communicate()  # the wrappers hold the pipe too
    assert process.returncode == -signal.SIGTERM
    assert ("2 steps in" in said) != ("1 step is still at work" in said)
    assert _read_steps(client, said, tmp_path) == ["first", "second"]


@pytest.mark.e2e
def test_a_second_signal_ends_the_wait_for_a_step_that_runs_on(
    client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group says that the step is at work, and the end of the step renews its report."""
    client.search_experiments()  # makes the store
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path))
    with _start(f"{WAITS}; echo never", tmp_path) as process:
        try:
            while process.poll() is None:
                process.terminate()
                time.sleep(0.2)
        finally:
            (tmp_path / "go").touch()
        _, said = process.communicate()
    assert process.returncode == -signal.SIGTERM
    assert "1 step is still at work" in said
    assert "no step reported yet |" in said
    assert _read_steps(client, said, tmp_path) == ["only"]


PATIENT = """
import mlflow_perf.cli.group as group
from mlflow_perf.cli import main
group._AFTER_SIGNAL_SEC = 600.0
main()
"""


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("script", "is_killed", "said"),
    [
        (f"{WAITS}; echo never", True, "for 1 step | a second signal ends the wait"),
        (
            f"{sys.executable} slow.py & {BEGUN}",
            False,
            "for the report of 1 step | a signal ends the wait",
        ),
    ],
)
def test_a_group_that_waits_says_for_what_and_how_to_end_it(
    client: MlflowClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    is_killed: bool,
    said: str,
) -> None:
    """Nothing but the signal ends these waits in time: the steps end after the group."""
    client.search_experiments()  # makes the store
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path))
    monkeypatch.setenv("MLFLOW_PERF_EXIT_TIMEOUT", "600")
    waits = SLOW.replace("os.getppid() == parent", 'not Path("go").exists()')
    (tmp_path / "slow.py").write_text(waits)
    with _start(script, tmp_path, [sys.executable, "-c", PATIENT, "group"]) as process:
        try:
            if is_killed:
                process.terminate()
            assert process.stderr is not None
            line = next(line for line in process.stderr if "waiting at most" in line)
            process.terminate()
            code = process.wait(300)
        finally:
            (tmp_path / "go").touch()
        _, rest = process.communicate()
    assert line == f"mlflow-perf: waiting at most 600 s {said}\n"
    assert "waiting at most" not in rest
    assert "1 step is still at work" in rest
    assert code == (-signal.SIGTERM if is_killed else 0)


@pytest.mark.e2e
def test_a_step_in_the_background_holds_no_group_up_and_renews_its_report(
    client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a signal the group waits only for steps that have ended, and send their reports."""
    client.search_experiments()  # makes the store
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path))
    with _start(f"{WAITS} & {BEGUN}", tmp_path) as process:
        try:
            assert process.wait(300) == 0
        finally:
            (tmp_path / "go").touch()
        _, said = process.communicate()
    assert "1 step is still at work" in said
    assert _read_steps(client, said, tmp_path) == ["only"]


@pytest.mark.e2e
def test_a_group_waits_for_a_step_that_has_ended_and_sends_its_report(
    client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report is that of all steps that had ended, however long their reports take."""
    client.search_experiments()  # makes the store
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path))
    monkeypatch.setenv("MLFLOW_PERF_EXIT_TIMEOUT", "300")
    (tmp_path / "slow.py").write_text(SLOW)
    with _start(f"{sys.executable} slow.py & {BEGUN}", tmp_path) as process:
        _, said = process.communicate()
    assert process.returncode == 0
    assert "1 step in" in said
    assert "at work" not in said


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["loop", "--"], 2, "A command is missing"),
        (["--", "snakemake", "-c", "2"], 2, "A name is missing"),
        ([" ", "--", "true"], 2, "must be a text that is not empty"),
        (["loop", "--", "not-there-at-all"], 127, "command not found"),
    ],
)
def test_a_wrong_call_is_refused(argv: list[str], code: int, message: str) -> None:
    """Nothing is started, and the message says what is missing."""
    from click.testing import CliRunner

    from mlflow_perf.cli import main

    done = CliRunner().invoke(main, ["group", *argv])
    assert (done.exit_code, message in done.stderr) == (code, True), done.stderr
