"""What is checked before a journal is sent, and what becomes of a run whose block never began."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, INVALID_PARAMETER_VALUE, PERMISSION_DENIED
from tests.publish.test_recovery import HEAD, ROW, delivery_with, journal_of, sent

import mlflow_perf.publish.recovery
from mlflow_perf.errors import DocumentError
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.node.exit_cause import End
from mlflow_perf.node.step_notes import write_end
from mlflow_perf.publish.group_journal import NOTES, open_group_journal
from mlflow_perf.publish.pipeline_journal import WORK_TAG
from mlflow_perf.publish.recovery import recover, recover_each
from mlflow_perf.publish.recovery_checks import (
    UNKNOWN_CAUSE,
    check_credentials,
    find_cause,
    find_destination,
    find_end,
    is_refusal,
    shorten,
)
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.perf_run import GROUP_TAG, PARENT_TAG
from mlflow_perf.tracking.recorded_runs import RECORDING_TAG
from mlflow_perf.tracking.reporting_notes import ReportingNotes, tag_notes
from mlflow_perf.tracking.run_handle import RunHandle

__all__ = ["sent"]  # the fixture of those tests


def test_a_forged_journal_gets_no_credentials(
    sent: list[Delivery], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token goes to the server that the environment names, and to no other."""
    monkeypatch.setattr(mlflow_perf.publish.recovery_checks, "is_refused", lambda _: False)
    monkeypatch.setattr(mlflow_perf.publish.recovery, "has_page", lambda _: False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "s3cr3t")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.here")
    for name, uri in {"a": "https://evil.example", "b": "http://mlflow.here",
                      "c": "https://mlflow.here/base"}.items():  # fmt: skip
        (tmp_path / f"{name}.journal").write_bytes(delivery_with(tracking_uri=uri))
    told = {one.journal[0]: one for one in recover_each(tmp_path)}
    assert {name: one.outcome for name, one in told.items()} == {
        "a": "kept", "b": "kept", "c": "sent",
    }  # fmt: skip
    assert "MLFLOW_TRACKING_TOKEN" in told["a"].cause
    assert [d.run.tracking_uri for d in sent] == ["https://mlflow.here/base"]
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN")
    assert [one.outcome for one in recover_each(tmp_path)] == ["sent", "sent"]


def test_a_step_that_its_runner_killed_has_the_runners_reason(tmp_path: Path) -> None:
    """It ignored SIGTERM, so that it could not tell; no journal makes another file be read."""
    note, other = tmp_path / "stopped-1", tmp_path / "secret"
    assert find_cause(HEAD | {"stop_note": str(note)}) == UNKNOWN_CAUSE
    for file in (note, other):
        file.write_text("FAILED took longer than its limit of 2 s", "utf-8")
    assert find_cause(HEAD | {"stop_note": str(note)}) == "took longer than its limit of 2 s"
    assert find_end(HEAD | {"stop_note": str(note)}).status == "FAILED"
    assert find_end(HEAD) == ("KILLED", UNKNOWN_CAUSE)
    assert find_end(HEAD, damaged=3).cause.startswith("its journal is damaged in line 3")
    os.mkfifo(fifo := tmp_path / "stopped-2")
    for odd in (str(other), str(fifo), str(tmp_path / "stopped-3"), "", 3, None):
        assert find_cause(HEAD | {"stop_note": odd}) == UNKNOWN_CAUSE


def test_a_step_that_could_not_write_its_end_has_what_its_runner_noted(tmp_path: Path) -> None:
    """The disk was full; what the runner stopped itself has that reason."""
    head = HEAD | {"stop_note": str(tmp_path / "stopped-1")}
    assert find_end(head) == ("KILLED", UNKNOWN_CAUSE)
    write_end(tmp_path, "FAILED", End("FAILED", "exit code 3"))
    assert find_end(head) == ("FAILED", "exit code 3")
    for tag in (WORK_TAG, GROUP_TAG):  # that the step's command started, and somebody killed
        of_workflow = head | {"delivery": {"tags": {tag: "x"}}}
        assert find_end(of_workflow) == ("KILLED", UNKNOWN_CAUSE)
    (tmp_path / "stopped-1").write_text("FAILED took longer than its limit of 2 s", "utf-8")
    assert find_end(head).cause.startswith("took longer")


def test_a_server_that_fails_is_described_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each result has the run, the node and the short reason; the second line names it no more."""
    uri, run_id = "http://mlflow.here:1", "0" * 32

    def fail(*_: object, **__: object) -> bool:
        raise OSError(
            f"API request to {uri}/api/2.0/mlflow/runs/get failed with exception "
            "HTTPConnectionPool(host='mlflow.here', port=1): Max retries exceeded with url: "
            f"/api/2.0/mlflow/runs/get?run_id={run_id} (Caused by ResponseError('too many 503'))"
        )

    monkeypatch.setattr(mlflow_perf.publish.recovery_checks, "is_refused", lambda _: False)
    monkeypatch.setattr(mlflow_perf.publish.recovery, "is_known", fail)
    for name in "ab":
        header = delivery_with(tracking_uri=uri, run_id=run_id, index=3)
        (tmp_path / f"{name}.journal").write_bytes(header)
    node = {"index": 3, "hostname": "another-host"}
    header = json.loads(delivery_with(run_id=run_id, index=3).split(b"\n")[0])
    (tmp_path / "c.journal").write_bytes(journal_of(ROW, **{**header, "node": node}))
    why = f"{uri} failed: ResponseError('too many 503')"
    found = list(recover_each(tmp_path))
    assert [(one.run_id, one.node, one.outcome) for one in found] == [
        (run_id, 3, "kept"), (run_id, 3, "kept"), (run_id, 3, "other host"),
    ]  # fmt: skip
    assert [one.cause for one in found[:2]] == [why, why]
    first, second = caplog.messages
    assert first.endswith(f"a.journal could not be sent and is kept: {why}.")
    assert second.endswith("b.journal could not be sent and is kept: its server failed before.")


def test_a_reason_is_short() -> None:
    """Whatever else MLflow says stays as it is."""
    timed_out = "Read timed out. (read timeout=30)"
    pool = "HTTPSConnectionPool(host='h', port=443)"
    whole = f"API request to https://h/api failed with exception {pool}: {timed_out}"
    assert shorten(whole) == timed_out
    assert shorten("INTERNAL_ERROR: no room") == "INTERNAL_ERROR: no room"


def test_what_a_damaged_journal_names_is_told_as_far_as_it_can_be_read() -> None:
    """The newest header counts, and nothing of a wrong type."""
    first, last = {"run_id": "a", "index": 0}, {"run_id": "b", "index": 1}
    assert find_destination([]) == (None, None)
    assert find_destination([{"delivery": first}, {"delivery": last}]) == ("b", 1)
    assert find_destination([{"delivery": first}, {"delivery": []}]) == ("a", 0)
    assert find_destination([{"delivery": {"run_id": 1, "index": True}}]) == (None, None)


@pytest.mark.e2e
def test_a_run_whose_creation_was_not_answered_is_found_again(store: str, tmp_path: Path) -> None:
    """It ends as the journal says, also if only that call failed; sent again, nothing changes."""
    client = MlflowClient()
    experiment = os.environ["MLFLOW_EXPERIMENT_ID"]
    run = client.create_run(experiment, tags={RECORDING_TAG: "abc123"})
    header = {"tracking_uri": store, "nonce": "abc123", "experiment_id": experiment}
    journal = journal_of(ROW, delivery={**HEAD["delivery"], **header, "own_run": True})
    for outcome in ("sent", "known", "sent"):
        if outcome == "sent":
            client.update_run(run.info.run_id, status="RUNNING")
        (tmp_path / "a.journal").write_bytes(journal)
        (recovered,) = recover(tmp_path)
        assert (recovered.run_id, recovered.outcome) == (run.info.run_id, outcome)
        header["run_id"] = run.info.run_id
        journal = journal_of(ROW, delivery={**HEAD["delivery"], **header, "own_run": True})
        assert client.get_run(run.info.run_id).info.status == "KILLED"
    assert len(client.list_artifacts(run.info.run_id, "perf")) == 1
    assert len(client.search_runs([experiment])) == 1


@pytest.mark.parametrize("name", ["MLFLOW_TRACKING_TOKEN", "PGPASSWORD", "credentials file"])
def test_every_credential_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """A server that the environment does not name gets none of them; a local store may be used."""
    monkeypatch.setenv("HOME", str(tmp_path))
    check_credentials("https://other.example")
    if name == "credentials file":
        (tmp_path / ".mlflow").mkdir()
        (tmp_path / ".mlflow" / "credentials").write_text("[mlflow]")
    else:
        monkeypatch.setenv(name, "s3cr3t")
    with pytest.raises(DocumentError, match=r"https://\*\*\*@other.example|other.example") as error:
        check_credentials("https://me:pass@other.example")
    assert "s3cr3t" not in str(error.value)
    assert "pass@" not in str(error.value)
    check_credentials(f"sqlite:///{tmp_path}/mlflow.db")


@pytest.mark.parametrize("known", ["id", "nonce", "nothing"])
def test_the_run_of_a_block_that_never_began_is_ended(
    store: str, tmp_path: Path, known: str
) -> None:
    """As KILLED, with the cause, at its own start; where there is none, none is made."""
    client, experiment = MlflowClient(), os.environ["MLFLOW_EXPERIMENT_ID"]
    header = {**HEAD["delivery"], "tracking_uri": store, "nonce": "abc123", "own_run": True}
    if known != "nothing":
        run_id = client.create_run(experiment, tags={RECORDING_TAG: "abc123"}).info.run_id
        header["run_id"] = run_id if known == "id" else None
    lines = journal_of(delivery=header, facts={}).replace(b'"started": 1.0, ', b"")
    (tmp_path / "a.journal").write_bytes(lines)
    (recovered,) = recover(tmp_path)
    assert (recovered.outcome, recovered.is_done) == ("not begun", True)
    runs = client.search_runs([experiment])
    assert [run.info.run_id for run in runs] == [recovered.run_id] * (known != "nothing")
    for run in runs:
        assert (run.info.status, run.info.end_time) == ("KILLED", run.info.start_time)
        assert "killed" in run.data.tags["mlflow_perf.cause"]
    assert not list(tmp_path.glob("*.journal"))


@pytest.mark.parametrize("has_run", [True, False])
def test_a_block_that_ended_without_a_figure_has_its_report(
    store: str, tmp_path: Path, has_run: bool
) -> None:
    """It had no room for a thread: neither a sampler's nor one that sends."""
    client, experiment = MlflowClient(), os.environ["MLFLOW_EXPERIMENT_ID"]
    header = {**HEAD["delivery"], "tracking_uri": store, "nonce": "abc123", "own_run": True}
    header |= {"run_id": None, "experiment_id": experiment}
    if has_run:
        header["run_id"] = client.create_run(experiment).info.run_id
    final = NodeDocument(node={"index": 0}, component="train", status="FINISHED").as_dict()
    last = {"final": final, "delivery": header, "unsent": "can't start new thread"}
    lines = journal_of(delivery=header, facts={}).replace(b'"started": 1.0, ', b"")
    (tmp_path / "a.journal").write_bytes(lines + json.dumps(last).encode() + b"\n")
    (recovered,) = recover(tmp_path)
    assert (recovered.outcome, recovered.is_done) == ("sent", True)
    (run,) = client.search_runs([experiment])
    assert (run.info.run_id, run.info.status) == (recovered.run_id, "FINISHED")
    assert client.list_artifacts(recovered.run_id or "", "perf")
    assert not list(tmp_path.glob("*.journal"))


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MlflowException("failed with error code 403", error_code=PERMISSION_DENIED), True),
        (MlflowException("no such id can be", error_code=INVALID_PARAMETER_VALUE), True),
        (MlflowException("failed with error code 502", error_code=INTERNAL_ERROR), False),
        (OSError("reset"), False),
    ],
)
def test_a_server_that_refuses_one_run_is_asked_for_the_others(
    error: Exception, is_one: bool
) -> None:
    """Whose rights to one experiment were taken away may write to others."""
    assert is_refusal(error) is is_one


def test_the_run_of_a_killed_group_ends_after_its_steps_journals(
    store: str, tmp_path: Path
) -> None:
    """It is KILLED at the end of its last step, or as its journal says, and has its report.

    A pipeline in it is in an experiment of its own.
    """
    client, experiment = MlflowClient(), os.environ["MLFLOW_EXPERIMENT_ID"]
    run = RunHandle(tracking_uri=store, experiment_id=experiment)
    delivery, journal = open_group_journal("flow", run, tmp_path)
    made = client.create_run(experiment, start_time=1000, tags={RECORDING_TAG: run.nonce}).info
    other = client.create_experiment(tmp_path.name)
    step = client.create_run(other, tags={PARENT_TAG: made.run_id}, start_time=2000).info
    client.set_terminated(step.run_id, end_time=9000)
    journal.leave()
    notes = journal.path.with_suffix(NOTES)
    notes.write_text(f"{step.run_id[:12]}:1000:2000:9000:9500\n")
    # A step's journal is sent before the report of the group is made.
    (tmp_path / "zz.journal").write_bytes(delivery_with(run_id="x"))
    assert [one.journal for one in recover_each(tmp_path)][-1] == journal.path.name
    info = client.get_run(made.run_id).info
    assert (info.status, info.end_time) == ("KILLED", 9000)
    tags = client.get_run(made.run_id).data.tags
    assert ReportingNotes(tags).find(step.run_id) == (1.0, 0.5)
    assert not notes.exists()
    assert {"perf", "perf_report.html"} <= {f.path for f in client.list_artifacts(made.run_id)}

    client.update_run(made.run_id, "RUNNING")
    delivery, journal = open_group_journal("flow", run, tmp_path)
    run.run_id, delivery.document.status, delivery.document.duration_sec = (
        made.run_id,
        "FAILED",
        7.0,
    )
    delivery.tags |= tag_notes("0123456789ab:1:3:5:8\n")
    assert journal.keep(delivery, unsent="its report was not sent: away")
    ended = [one for one in recover_each(tmp_path) if one.journal == journal.path.name]
    assert [(one.run_id, one.outcome, one.cause) for one in ended] == [
        (made.run_id, "sent", "its report was not sent: away")
    ]
    info = client.get_run(made.run_id).info
    assert (info.status, info.end_time) == ("FAILED", 8000)
    tags = client.get_run(made.run_id).data.tags
    assert ReportingNotes(tags).find("0123456789ab") == (0.002, 0.003)
    assert [path.name for path in tmp_path.glob("*.journal")] == ["zz.journal"]
