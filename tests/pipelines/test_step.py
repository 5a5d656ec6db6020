"""One step with real processes, its runs only remembered."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlflow_perf.core.uris import absolute_store
from mlflow_perf.node.exit_cause import End
from mlflow_perf.node.step_notes import GIVEN_BACK, STARTED_COMMAND, read_status, write_end
from mlflow_perf.pipelines import lost_step, processes, store_calls
from mlflow_perf.pipelines import step as step_module
from mlflow_perf.pipelines.graph import Step
from mlflow_perf.pipelines.lost_step import may_go_on
from mlflow_perf.pipelines.step import run_step
from mlflow_perf.pipelines.step_job import StepJob
from mlflow_perf.pipelines.step_outcome import Outcome, StepEndedError
from mlflow_perf.publish.step_record import StepRecord
from mlflow_perf.publish.workflow_writer import Place

RUNS: list[tuple[str, Any]] = []


class RememberedRuns:
    """What a step writes to MLflow, in order."""

    fail = False

    @staticmethod
    def open_client(uri: str) -> None:
        raise ConnectionError(uri)

    def __init__(self, place: Place) -> None:
        self.place = place

    def start(self, _experiment: str, name: str, **facts: Any) -> str:
        if self.fail:
            raise ConnectionError("the server is away")
        RUNS.append(("start", {"name": name, **facts}))
        return "the-run"

    def provide(self, _step: Path, record: StepRecord) -> str:
        return self.start(record.experiment_id, record.name)

    def discard(self, run_id: str) -> None:
        RUNS.append(("discard", run_id))

    def upload(self, _run_id: str, step: Path) -> None:
        self.uploaded = time.time()
        RUNS.append(("upload", sorted(p.name for p in (step / "logs").iterdir())))

    def has_report(self, _run_id: str) -> bool:
        return False

    def note_report(self, run_id: str, node_count: int) -> None:
        RUNS.append(("note", (run_id, node_count)))

    def forget_report(self, run_id: str) -> None:
        RUNS.append(("forget", run_id))

    def untag(self, _run_id: str, key: str) -> None:
        RUNS.append(("untag", key))

    def end(
        self, _run_id: str, status: str, *, tags: Mapping[str, str] | None = None, ended: float
    ) -> None:
        RUNS.append(("end", (status, dict(tags or {}))))
        assert ended <= self.uploaded  # with its command, and not with its report


MAKE_WRAPPER = StepJob.make_wrapper


@pytest.fixture(autouse=True)
def _remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    RUNS.clear()
    monkeypatch.setattr(step_module, "Tracking", RememberedRuns)
    monkeypatch.setattr(store_calls, "_away", set())
    monkeypatch.setattr(store_calls, "open_client", RememberedRuns.open_client)
    # What measures a step is tried with real runs in test_e2e.py.
    monkeypatch.setattr(StepJob, "make_wrapper", lambda _job, _attempt: ())


@pytest.fixture
def job(tmp_path: Path) -> StepJob:
    """A step of one shell command."""
    return StepJob(
        step=Step("fit", "fit", "echo done", None, environment={"COLOUR": "red"}),
        folder=tmp_path / "fit",
        outputs=(tmp_path / "fit" / "outputs" / "out",),
        stop=tmp_path / "stop",
        place=Place("sqlite:///x.db"),
        experiment_id="1",
        parent="parent",
        params={"rows": 3},
        tags={"mlflow_perf.step": "fit"},
    )


def _change(job: StepJob, **facts: Any) -> StepJob:
    """Return the job with other facts of its step."""
    return replace(job, step=replace(job.step, **facts))


def _failed(job: StepJob) -> Outcome:
    with pytest.raises(StepEndedError) as caught:
        run_step(job)
    return caught.value.outcome


def _log(job: StepJob) -> str:
    return (job.folder / "logs" / "std_log.txt").read_text()


def test_a_step_that_works(job: StepJob) -> None:
    """Its run has parameters and parent, gets the log, and ends FINISHED."""
    outcome = run_step(job)
    assert (outcome.status, outcome.run_id, outcome.message) == ("FINISHED", "the-run", "")
    assert [kind for kind, _ in RUNS] == ["start", "note", "upload", "end"]
    assert RUNS[0][1]["params"] == {"rows": 3}
    assert RUNS[0][1]["parent"] == "parent"
    assert RUNS[1][1] == ("the-run", 1)
    assert RUNS[2][1] == ["std_log.txt"]
    ended = {"mlflow_perf.attempts": "1", "mlflow_perf.status": "FINISHED"}
    assert RUNS[3][1] == ("FINISHED", ended)
    assert job.outputs[0].is_dir()


@pytest.mark.e2e
def test_a_step_on_another_node_is_followed(
    job: StepJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where its worker is lost after the command, it is known to have finished."""
    monkeypatch.setattr(StepJob, "make_wrapper", MAKE_WRAPPER)
    launcher = tmp_path / "srun"
    launcher.write_text('#!/bin/sh\nshift 2\n"$@"\ncat "$FOLDER/ended" >"$FOLDER/after"\n')
    launcher.chmod(0o755)
    monkeypatch.setenv("PARSL_MPI_PREFIX", f"{launcher} --nodelist other")
    monkeypatch.setenv("FOLDER", str(job.folder))
    job = replace(job, place=Place(f"sqlite:///{tmp_path / 'x.db'}"))  # the wrapper is a real one
    outcome = run_step(_change(job, command='cat "$FOLDER/ended"'))
    assert (outcome.status, _log(job)) == ("FINISHED", "STARTED")
    assert (job.folder / "after").read_text() == "FINISHED"


@pytest.mark.parametrize(
    ("command", "cause", "is_told"),
    [
        ("true", "killed or ended without a word", True),
        ("true", "", False),
        ("kill -9 $$", "killed or ended without a word", False),
    ],
)
def test_a_step_that_finished_says_if_its_figures_are_not_whole(
    job: StepJob,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    command: str,
    cause: str,
    is_told: bool,
) -> None:
    """Its journal ends early on a full disk; that of a killed one does as well, which is told."""

    def recover(folder: Path, **_: Any) -> list[SimpleNamespace]:
        return [SimpleNamespace(cause=cause, node=0)] if folder.name == "measured" else []

    monkeypatch.setattr(step_module, "recover", recover)
    with suppress(StepEndedError):
        run_step(_change(job, command=command))
    assert ("The figures of step 'fit' are not whole" in caplog.text) is is_told


def test_its_environment_leads_to_its_run(job: StepJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step's own variables and run are there; a launcher of the runner is not."""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    names = "COLOUR MLFLOW_RUN_ID MLFLOW_TRACKING_URI OMPI_COMM_WORLD_RANK"
    run_step(_change(job, command=f'for n in {names}; do echo "$n=${{!n}}"; done'))
    assert _log(job).split() == [
        "COLOUR=red", "MLFLOW_RUN_ID=the-run", "MLFLOW_TRACKING_URI=sqlite:///x.db",
        "OMPI_COMM_WORLD_RANK=",
    ]  # fmt: skip


def test_without_a_run_its_reports_wait(job: StepJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner makes the run; with a run, its processes know that one's store."""
    names = "MLFLOW_RUN_ID MLFLOW_PERF_PARENT MLFLOW_PERF_STEP"
    asking = _change(job, command=f'for n in {names}; do echo "$n=${{!n}}"; done')
    for name in names.split()[1:]:
        monkeypatch.setenv(name, "another")
    run_step(asking)
    first, second, third = _log(job).splitlines()
    assert (first, second) == ("MLFLOW_RUN_ID=the-run", "MLFLOW_PERF_PARENT=")
    told = {"parent": "parent", "step": "fit", "store": absolute_store("sqlite:///x.db")}
    told |= {"experiment": "1"}
    assert json.loads(third.partition("=")[2]) == {**told, "run_id": "the-run"}
    shutil.rmtree(job.folder)
    monkeypatch.setattr(RememberedRuns, "fail", True)
    assert not run_step(asking).is_logged
    first, second, third = _log(job).splitlines()
    assert (first, second) == ("MLFLOW_RUN_ID=", "MLFLOW_PERF_PARENT=")
    assert json.loads(third.partition("=")[2]) == {**told, "run_id": None}


def test_a_folder_that_cannot_be_written_is_the_steps_failure(job: StepJob) -> None:
    """Its disk is full: the run that it has by then is ended, with the reason."""
    job.folder.parent.joinpath("fit").write_text("no folder")
    outcome = _failed(job)
    assert outcome.message == f"{job.folder}: File exists"
    assert RUNS[-1][1][0] == "FAILED"


def test_a_step_that_has_finished_is_only_reported_by_the_next_worker(job: StepJob) -> None:
    """The first one was lost while it sent the report: the command does not run again."""
    own = {"COUNT": f"{job.stop}s"}
    counting = _change(job, command='echo once >> "$COUNT"', environment=own)
    first = run_step(counting)
    RUNS.clear()
    again = run_step(counting)
    assert job.stop.with_name("stops").read_text() == "once\n"
    assert (again.status, again.run_id, again.attempts) == ("FINISHED", "the-run", 1)
    assert 0 <= again.duration_sec <= first.duration_sec + 1
    assert [what for what, _ in RUNS] == ["note", "upload", "end"]


@pytest.mark.parametrize("said", [STARTED_COMMAND, "FAILED\nexit code 3"])
def test_a_step_that_another_worker_has_begun_is_left_to_it(job: StepJob, said: str) -> None:
    """Two workers that run it would write the same files."""
    job.folder.mkdir()
    (job.folder / "started").write_text("the-run")
    (job.folder / "ended").write_text(said)
    outcome = _failed(job)
    assert (outcome.message, outcome.is_lost) == ("its worker was lost", True)
    assert not (job.folder / "logs").exists()
    assert not may_go_on(job)
    assert RUNS == []


def test_a_step_that_nobody_has_begun_may_go_on(job: StepJob) -> None:
    """Until a worker has it; then only its report may be left."""
    (job.folder / "code").mkdir(parents=True)  # the runner has copied it
    assert may_go_on(job)
    run_step(job)
    assert may_go_on(job)
    write_end(job.folder, "FAILED", End("FAILED", "exit code 3"))
    assert not may_go_on(job)


REFUSAL = "srun: error: Unable to create step for job 1: Job/step already completing or completed"


def test_a_step_that_its_allocation_refuses_is_given_back(job: StepJob) -> None:
    """The worker waits for its end; another one runs the step, in a new MLflow run."""
    ready = job.stop.with_name("ready")
    command = f"test -e {ready} && exit; echo '{REFUSAL}' >&2; exit 1"
    asking, outcomes = _change(job, command=command), list[Outcome]()
    refused = threading.Thread(target=lambda: outcomes.append(_failed(asking)))
    refused.start()
    until = time.monotonic() + 60
    while read_status(job.folder) != GIVEN_BACK:
        assert time.monotonic() < until, "it was not given back"
        time.sleep(0.01)
    ready.touch()
    assert run_step(asking).status == "FINISHED"
    job.stop.touch()
    refused.join(60)
    assert [one.message for one in outcomes] == ["its worker was lost"]
    assert [what for what, _ in RUNS] == ["start", "discard", "start", "note", "upload", "end"]


@pytest.mark.parametrize("before", ["", "echo working; "])
def test_a_step_that_slurm_refuses_for_good_has_failed(
    job: StepJob, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """The allocation does not end, or the step's own `srun` was refused, after a part of it."""
    monkeypatch.setattr(lost_step, "_KILL_SEC", 600.0 if before else 0.01)
    outcome = _failed(_change(job, command=f"{before}echo '{REFUSAL}' >&2; exit 1"))
    assert outcome.message == f"the command ended with exit code 1: {REFUSAL}"
    assert not may_go_on(job)


def test_a_step_that_fails_says_how(job: StepJob) -> None:
    """Exit code and last line of the log make the message, here and in the run but for secrets."""
    outcome = _failed(_change(job, command="echo first; echo s3://a:b@c broke >&2; exit 3"))
    assert outcome.message == "the command ended with exit code 3: s3://a:***@c broke"
    assert RUNS[-1][1][0] == "FAILED"
    assert RUNS[-1][1][1]["mlflow_perf.error"] == outcome.message


def test_a_signal_is_named(job: StepJob) -> None:
    """A process that was killed says by which signal."""
    assert "signal 9" in _failed(_change(job, command="kill -9 $$")).message


def test_a_step_that_takes_too_long_is_stopped(
    job: StepJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is in the message, and the process is gone."""
    monkeypatch.setattr(processes, "_LAUNCHED_SEC", 0.0)
    outcome = _failed(_change(job, command="exec sleep 60", timeout_sec=0.2))
    assert outcome.message == "took longer than its limit of 0.2 s"
    assert outcome.duration_sec < 30


def test_the_stop_file_stops_it(job: StepJob) -> None:
    """What the runner leaves on an interrupt ends the step as KILLED."""
    outcome = _failed(_change(job, command=f"touch {job.stop}; exec sleep 60"))
    assert (outcome.status, outcome.message) == ("KILLED", "stopped")


def test_a_step_that_waits_when_the_pipeline_stops_is_not_begun(job: StepJob) -> None:
    """It starts no run and no process: the runner records it as not run, once."""
    job.stop.touch()
    assert _failed(job).status == "SKIPPED"
    assert RUNS == []
    assert not job.folder.exists()


def test_a_failed_attempt_is_repeated_without_its_outputs(job: StepJob) -> None:
    """The second attempt starts from clean outputs, and each has its log."""
    out = job.outputs[0]
    command = (
        f"if [ -e {job.folder}/once ]; then ls {out}; else "
        f"touch {job.folder}/once {out}/half; exit 1; fi"
    )
    outcome = run_step(_change(job, command=command, retries=2))
    assert (outcome.status, outcome.attempts) == ("FINISHED", 2)
    assert (job.folder / "logs" / "attempt-2" / "std_log.txt").read_text() == ""


def test_each_attempt_begins_with_the_code_as_it_was(job: StepJob, tmp_path: Path) -> None:
    """What an earlier one has changed is restored, and its outputs are gone; all else stays."""
    code = tmp_path / "component"
    code.mkdir()
    (code / "conf.txt").write_text("as it was")
    command = (
        "grep -q was conf.txt && mkdir outputs/half && touch logs/$$ mlruns.$$ "
        f"&& echo changed > conf.txt && ! mkdir {job.folder}/once"
    )
    outcome = run_step(_change(job, command=command, code=code, retries=1))
    assert (outcome.status, outcome.attempts) == ("FINISHED", 2)
    assert len(list((job.folder / "code" / "logs").iterdir())) == 2
    assert len(list((job.folder / "code").glob("mlruns.*"))) == 2  # MLflow's own, perhaps


def test_the_journal_of_an_attempt_is_sent_before_the_next(
    job: StepJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent at the end, a killed attempt's figures would take the place of the good one's."""
    seen = []

    def recover(folder: Path, *, of_any_host: bool, **_: object) -> list[Any]:
        left = sorted(p.name for p in folder.glob("*.journal"))
        seen.append((left, of_any_host, (job.folder / "once").read_text()))
        return []

    monkeypatch.setattr(step_module, "recover", recover)
    command = (
        f'mkdir -p "$MLFLOW_PERF_DIR"; echo try >> {job.folder}/once; '
        f'n=$(wc -l < {job.folder}/once); to=\'{{"delivery": {{"run_id": "the-run"}}}}\'; '
        'echo "$to" > "$MLFLOW_PERF_DIR/$n.journal"; [ $n = 2 ]'
    )
    assert run_step(_change(job, command=command, retries=2)).status == "FINISHED"
    assert seen == [(["1.journal"], True, "try\n"), (["2.journal"], True, "try\ntry\n")]
    assert not job.attempt_folder("measured", 2).exists()
    # Why the first attempt ended is not why the step did.
    assert ("untag", "mlflow_perf.cause") in RUNS


def test_each_attempt_is_reported(job: StepJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a step that does not report itself, the wrapper's report of every attempt is sent."""
    monkeypatch.setattr(RememberedRuns, "has_report", lambda *_: ("forget", "the-run") in RUNS)
    sent = []

    def recover(
        folder: Path, *, of_any_host: bool, ended: End | None = None, **_: object
    ) -> list[Any]:
        assert of_any_host
        sent.append((folder.relative_to(job.folder).as_posix(), ended))
        return []

    monkeypatch.setattr(step_module, "recover", recover)
    outcome = run_step(_change(job, command=f"! mkdir {job.folder}/once", retries=1))
    assert (outcome.status, outcome.reported) == ("FINISHED", True)
    failed = ("FAILED", "exit code 1")
    assert sent == [("journals", None), ("measured", failed), ("journals/attempt-2", None)]
    assert [what for what, _ in RUNS].count("forget") == 1


def test_one_rank_that_fails_ends_the_others(job: StepJob) -> None:
    """A rank that waits for a lost one does not wait for ever, and the lost one is named."""
    command = 'if [ "$RANK" = 1 ]; then echo lost; exit 5; else exec sleep 60; fi'
    outcome = _failed(_change(job, command=command, instances=2, distribution="pytorch"))
    assert outcome.message == "rank 1 ended with exit code 5: lost"
    assert outcome.duration_sec < 30


def test_without_mlflow_the_step_still_runs(
    job: StepJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that is away costs the record, not the work; one warning says so."""
    monkeypatch.setattr(RememberedRuns, "fail", True)
    outcome = run_step(_change(job, command="echo run=$MLFLOW_RUN_ID"))
    assert (outcome.status, outcome.run_id, _log(job)) == ("FINISHED", None, "run=\n")
    assert [r.levelname for r in caplog.records] == ["WARNING"]


def test_code_that_cannot_be_copied_is_the_steps_failure(job: StepJob, tmp_path: Path) -> None:
    """Two files of one name are the step's mistake, said in its run."""
    (tmp_path / "a").mkdir()
    for name in ("a/x", "x"):
        (tmp_path / name).write_text("")
    outcome = _failed(_change(job, includes=(tmp_path / "a" / "x", tmp_path / "x")))
    assert "would be x of the snapshot" in outcome.message
    assert RUNS[-1][1][0] == "FAILED"


@pytest.mark.parametrize(
    ("variables", "most_sec"),
    [
        ({}, 60 + 30),
        ({"MLFLOW_PERF_EXIT_TIMEOUT": "600"}, 60 + 600),
        ({"MLFLOW_PERF_START_TIMEOUT": "40"}, 60 + 80),
        ({"MLFLOW_PERF_EXIT_TIMEOUT": "soon"}, 60),  # its wrapper says so
    ],
)
def test_a_wrapper_may_wait_as_long_as_it_was_told(
    job: StepJob, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], most_sec: float
) -> None:
    """A report that a slow server takes is no time of the step."""
    monkeypatch.delenv("MLFLOW_PERF_START_TIMEOUT", raising=False)
    monkeypatch.delenv("MLFLOW_PERF_EXIT_TIMEOUT", raising=False)
    limits = _change(job, environment=variables).make_limits(1, is_followed=True)
    assert limits.ours_sec == most_sec


def _show_inside(job: StepJob) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Return the variables of the wrapper and of its command, and the words of both."""
    outer = job.make_outer(job.make_environment("the-run", 1), 1)
    words = list(MAKE_WRAPPER(job, 1))
    command = [*words[words.index("--") + 1 :], "env"]
    said = subprocess.run(command, env=outer, capture_output=True, text=True, check=True).stdout
    return outer, dict(line.split("=", 1) for line in said.splitlines() if "=" in line), words


def test_a_step_with_a_store_of_its_own_is_measured_in_the_pipelines(
    job: StepJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its own code sees its own store, and no run that this one does not have."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "of the pipeline")
    monkeypatch.delenv("MLFLOW_TRACKING_INSECURE_TLS", raising=False)
    uri = "http://me:s3cr3t@127.0.0.1:9"
    own = {"MLFLOW_TRACKING_URI": uri, "MLFLOW_TRACKING_TOKEN": "its own"}
    own |= {"MLFLOW_TRACKING_INSECURE_TLS": "true", "PYTHONPATH": "/own"}
    own |= {"MLFLOW_TRACKING_;false": "an odd name", "BASH_FUNC_f%%": "() { :; }"}
    (tmp_path / "rc").write_text(f"touch {tmp_path}/sourced\n")
    own["BASH_ENV"] = str(tmp_path / "rc")
    outer, inner, words = _show_inside(_change(job, environment=own))
    assert outer["MLFLOW_TRACKING_URI"] == "sqlite:///x.db"
    assert outer["MLFLOW_TRACKING_TOKEN"] == "of the pipeline"
    assert "MLFLOW_TRACKING_INSECURE_TLS" not in outer
    assert outer["MLFLOW_RUN_ID"] == "the-run"
    assert own.keys() <= inner.keys()
    assert not (tmp_path / "sourced").exists()  # the step's own shell does that, once
    same = [name for name in own if name != "BASH_FUNC_f%%"]  # it is written otherwise
    assert [inner[name] for name in same] == [own[name] for name in same]
    assert not {"MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_PERF_STEP"} & inner.keys()
    assert not [name for name in inner if name.startswith("MLFLOW_PERF_STEP_")]
    assert not [word for word in words if "s3cr3t" in word or "its own" in word]


def test_what_parsl_logs_of_a_step_has_none_of_its_command(job: StepJob) -> None:
    """It may hold a password, and that file is for everybody."""
    assert repr(_change(job, command="log in as me:s3cr3t@host")) == "StepJob('fit')"


def test_a_step_without_one_has_the_pipelines(job: StepJob) -> None:
    """And its run."""
    outer, inner, _ = _show_inside(job)
    assert inner["MLFLOW_RUN_ID"] == outer["MLFLOW_RUN_ID"] == "the-run"
    assert inner["MLFLOW_TRACKING_URI"] == outer["MLFLOW_TRACKING_URI"] == "sqlite:///x.db"
    assert inner["MLFLOW_EXPERIMENT_ID"] == "1"
    assert inner["MLFLOW_PERF_DIR"] == str(job.folder / "journals")
    assert outer["MLFLOW_PERF_DIR"] == str(job.folder / "measured")
