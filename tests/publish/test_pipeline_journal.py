"""`recover` finds what the killed runner of a pipeline has left, and ends all of its runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient
from tests.publish.test_group_journal import HOLDER
from tests.publish.test_recovery import HEAD, ROW, journal_of

from mlflow_perf.node.step_notes import write_stop_note
from mlflow_perf.pipelines import step
from mlflow_perf.publish.journal import Journal
from mlflow_perf.publish.pipeline_journal import list_unsent, open_pipeline_journal
from mlflow_perf.publish.recovery import recover_each
from mlflow_perf.publish.step_record import StepRecord, list_other_stores
from mlflow_perf.tracking.perf_run import COUNT_TAG, PARENT_TAG, PIPELINE_TAG
from mlflow_perf.tracking.recorded_runs import RECORDING_TAG
from mlflow_perf.tracking.run_handle import RunHandle


def _begin(store: str, tmp_path: Path) -> tuple[Journal, RunHandle, Path]:
    """Return the journal, the run and the work folder of a pipeline that has begun."""
    run, work = RunHandle(tracking_uri=store), tmp_path / "work"
    run.experiment_id = os.environ["MLFLOW_EXPERIMENT_ID"]
    _, journal = open_pipeline_journal("flow", run, work, tmp_path / "state")
    tags = {RECORDING_TAG: run.nonce, PIPELINE_TAG: "flow"}
    made = MlflowClient().create_run(run.experiment_id, start_time=1000, tags=tags)
    run.run_id = made.info.run_id
    journal.note_run()
    return journal, run, work


def _begin_step(run: RunHandle, work: Path, name: str) -> str:
    """Make the run and the folder of a step, and return the run's id."""
    tags = {PARENT_TAG: str(run.run_id), "mlflow_perf.step": name}
    made = MlflowClient().create_run(str(run.experiment_id), tags=tags)
    (work / name).mkdir(parents=True)
    (work / name / "started").write_text(made.info.run_id)
    return str(made.info.run_id)


def _measure(run: RunHandle, work: Path, name: str, run_id: str | None, kind: str) -> Path:
    """Write a journal of a step, as one that was killed."""
    path = work / name / kind / "one.journal"
    path.parent.mkdir(exist_ok=True)
    header = {**HEAD["delivery"], "run_id": run_id, "tracking_uri": run.tracking_uri}
    path.write_bytes(journal_of(ROW, delivery=header))
    return path


def _begin_measured(run: RunHandle, work: Path) -> tuple[str, Path]:
    """Make the run of the step `own` and the journal in which its runner measured it."""
    run_id = _begin_step(run, work, "own")
    return run_id, _measure(run, work, "own", run_id, "measured")


def test_the_runs_of_a_killed_pipeline_are_ended(store: str, tmp_path: Path) -> None:
    """Reports of its steps are sent; a step that had ended ends so, the others as KILLED.

    One that the runner stopped itself, in an attempt that was its last, ends for that reason.
    """
    journal, run, work = _begin(store, tmp_path)
    names = ("cut", "done", "own", "late", "again", "broke")
    ids = {name: _begin_step(run, work, name) for name in names}
    (work / "done" / "ended").write_text("FINISHED")
    (work / "broke" / "ended").write_text("FAILED\nexit code 3\n")
    for name in ("late", "again"):
        write_stop_note(work / name / "stopped-1", "FAILED", "took longer than its limit of 2 s")
    (work / "again" / "logs" / "attempt-2").mkdir(parents=True)
    (work / "own" / "code" / "outputs").mkdir(parents=True)
    (work / "own" / "code" / "outputs" / "model.txt").write_text("half")
    _measure(run, work, "cut", ids["cut"], "measured")
    journal.leave()
    left = list(recover_each(tmp_path / "state"))
    assert [(one.outcome, one.run_id) for one in left] == [
        ("sent", ids["cut"]),
        ("sent", run.run_id),
    ]
    client = MlflowClient()
    infos = {name: client.get_run(run_id).info for name, run_id in ids.items()}
    assert {name: info.status for name, info in infos.items()} == {
        "cut": "KILLED",
        "done": "FINISHED",
        "own": "KILLED",
        "late": "FAILED",
        "again": "KILLED",
        "broke": "FAILED",
    }
    for run_id, info in zip(ids.values(), infos.values(), strict=True):
        assert client.get_run(run_id).data.tags["mlflow_perf.status"] == info.status
    tags = {name: client.get_run(ids[name]).data.tags for name in ("late", "broke")}
    assert tags["late"]["mlflow_perf.error"] == "took longer than its limit of 2 s"
    assert tags["broke"]["mlflow_perf.error"] == "exit code 3"
    parent = client.get_run(str(run.run_id)).info
    assert parent.status == "KILLED"
    assert parent.end_time == max(info.end_time for info in infos.values())
    assert client.get_run(ids["cut"]).data.metrics
    assert [file.path for file in client.list_artifacts(ids["own"])] == ["outputs"]
    assert not list(work.rglob("*.journal"))
    assert not list(recover_each(tmp_path / "state"))


def test_a_pipeline_that_a_step_ran_is_ended_too(store: str, tmp_path: Path) -> None:
    """Its journal is among those of the step; what its own steps have left is in a folder of it."""
    journal, run, work = _begin(store, tmp_path)
    outer = _begin_step(run, work, "outer")
    (work / "outer" / "journals").mkdir()
    inner_journal, inner, _ = _begin(store, tmp_path / "inner")
    inner_step = _begin_step(inner, tmp_path / "inner" / "work", "cut")
    _measure(inner, tmp_path / "inner" / "work", "cut", inner_step, "measured")
    for one in (journal, inner_journal):
        one.leave()
    for path in (tmp_path / "inner" / "state").iterdir():
        path.rename(work / "outer" / "journals" / path.name)
    left = list(recover_each(tmp_path / "state"))
    assert [one.run_id for one in left] == [inner_step, inner.run_id, run.run_id]
    for run_id in (outer, inner_step, str(inner.run_id), str(run.run_id)):
        assert MlflowClient().get_run(run_id).info.status == "KILLED"


def test_a_pipeline_that_a_step_ran_into_another_store_has_its_report_there(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of a workflow is made where that store is the default of the process."""
    journal, run, work = _begin(store, tmp_path)
    _begin_step(run, work, "inner")
    journal.leave()
    other = f"sqlite:///{tmp_path}/other.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", other)
    mlflow.set_tracking_uri(other)
    step._send_elsewhere(tmp_path / "state", store)
    made = MlflowClient(store).get_run(str(run.run_id))
    assert (made.info.status, made.data.tags[COUNT_TAG]) == ("KILLED", "1")
    assert list((tmp_path / "state").glob("*.journal")) == []


def test_a_work_folder_that_is_not_there_is_waited_for(store: str, tmp_path: Path) -> None:
    """It may be on a disk that is not mounted; one that is gone for good has an empty place."""
    journal, run, work = _begin(store, tmp_path)
    run_id = _begin_step(run, work, "cut")
    journal.leave()
    work.rename(tmp_path / "elsewhere")
    (left,) = recover_each(tmp_path / "state")
    assert not left.is_done
    assert f"its work folder {work} is not there" in left.cause
    work.mkdir()
    assert [one.outcome for one in recover_each(tmp_path / "state")] == ["sent"]
    for one in (run_id, str(run.run_id)):
        assert MlflowClient().get_run(one).info.status == "KILLED"


def test_a_step_without_a_run_ends_when_its_runner_was_killed(store: str, tmp_path: Path) -> None:
    """`recover` makes its run hours later: its end is the last sign of life, not the sending."""
    journal, run, work = _begin(store, tmp_path)
    begun = time.time() - 7200
    step = work / "cut"
    record = StepRecord(str(run.experiment_id), "cut", str(run.run_id), {}, started=begun)
    record.keep(step)
    (step / "started").write_text("")
    (step / "ended").write_text("RUNNING")
    os.utime(step / "ended", (begun + 60, begun + 60))
    journal.leave()
    assert [one.outcome for one in recover_each(tmp_path / "state")] == ["sent"]
    info = MlflowClient().get_run((step / "started").read_text()).info
    assert (info.status, info.start_time) == ("KILLED", int(1000 * begun))
    assert info.end_time == pytest.approx(1000 * (begun + 60), abs=2)


def test_a_step_that_still_runs_is_told_to_stop_first(store: str, tmp_path: Path) -> None:
    """Its report is still to come: until then no run is ended, and the journal stays."""
    journal, run, work = _begin(store, tmp_path)
    path = _measure(run, work, "cut", _begin_step(run, work, "cut"), "measured")
    assert not next(recover_each(tmp_path / "state")).is_done  # the pipeline itself runs
    assert not (work / "stop").exists()
    journal.leave()
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        left = list(recover_each(tmp_path / "state"))
        assert [one.outcome for one in left] == ["running", "running"]
        assert "a step of its pipeline still runs" in left[1].cause
        assert (work / "stop").exists()
        assert MlflowClient().get_run(str(run.run_id)).info.status == "RUNNING"
        holder.communicate("")
    assert [one.outcome for one in recover_each(tmp_path / "state")] == ["sent", "sent"]


def test_what_the_runner_measured_of_a_step_that_reported_itself_is_not_sent(
    store: str, tmp_path: Path
) -> None:
    """Nothing is counted twice, also where the runner was killed after the step had reported."""
    journal, run, work = _begin(store, tmp_path)
    run_id, measured = _begin_measured(run, work)
    assert list_unsent(work) == [measured]
    own = _measure(run, work, "own", run_id, "journals")
    assert list_unsent(work) == [own]
    journal.leave()
    assert [one.outcome for one in recover_each(tmp_path / "state")] == ["sent", "sent"]
    assert list_unsent(work) == []
    again = _measure(run, work, "own", run_id, "measured")
    (known,) = recover_each(again.parent)
    assert (known.outcome, list_unsent(work)) == ("known", [])


def test_a_report_that_never_began_leaves_the_step_what_the_runner_measured(
    store: str, tmp_path: Path
) -> None:
    """Its job was killed together with the runner, before its block."""
    journal, run, work = _begin(store, tmp_path)
    run_id, _ = _begin_measured(run, work)
    own = _measure(run, work, "own", run_id, "journals")
    head = json.loads(own.read_text().splitlines()[0])
    del head["started"], head["facts"]
    own.write_text(json.dumps(head) + "\n")
    journal.leave()
    left = [one.outcome for one in recover_each(tmp_path / "state")]
    assert (left, list_unsent(work)) == (["not begun", "sent", "sent"], [])
    assert "max_t_mem_percent" in MlflowClient().get_run(run_id).data.metrics


def test_a_report_to_another_store_leaves_the_step_what_the_runner_measured(
    store: str, tmp_path: Path
) -> None:
    """Each goes where it belongs, whether the other one can be sent or not."""
    journal, run, work = _begin(store, tmp_path)
    _, measured = _begin_measured(run, work)
    away = RunHandle("http://127.0.0.1:9", run_name="elsewhere")
    other = _measure(away, work, "own", None, "journals")
    assert list_unsent(work) == [other, measured]
    journal.leave()
    assert list_other_stores(other.parent, store) == ["http://127.0.0.1:9"]
    assert [one.outcome for one in recover_each(measured.parent, store=store)] == ["sent"]
    (kept,) = recover_each(other.parent, store=store)
    assert (kept.outcome, kept.cause) == ("kept", "it goes to another store")
    assert list_unsent(work) == [other]
    (kept,) = recover_each(other.parent)
    assert (kept.outcome, kept.run_id) == ("kept", None)  # never the step's run
