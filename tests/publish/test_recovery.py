"""Journals that somebody damaged or forged: one line each, and nothing else touched."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.publish.test_journal import new_journal, rows

import mlflow_perf.publish.recovery
from mlflow_perf.core.background_call import BackgroundCall
from mlflow_perf.core.workspaces import read_workspace
from mlflow_perf.errors import DocumentError, NotUploadedError
from mlflow_perf.model.summary import RunningSummary
from mlflow_perf.node.exit_cause import End
from mlflow_perf.publish.journal import BEGUN, FORMAT
from mlflow_perf.publish.recovery import read_journal, recover, recover_each
from mlflow_perf.publish.recovery_checks import UNWRITTEN
from mlflow_perf.recorders.profile.stack_spool import StackSpool
from mlflow_perf.recorders.spool import PREFIX
from mlflow_perf.recorders.steps import StepMetrics
from mlflow_perf.recorders.steps.stats import LoopRecord, StepTimes
from mlflow_perf.tracking.delivery import Delivery

HEAD: dict[str, Any] = {
    "format": FORMAT,
    "pid": 1,
    "boot_id": "",
    "delivery": {"index": 0, "tags": {}, "tracking_uri": "", "artifact_path": "perf"},
    "node": {"index": 0},
    "component": "train",
    "started": 1.0,
    "counters": ["pages"],
    "facts": {"node_count": 1.0},
}
ROW = {"rows": [{"timestamp": 1.0, "elapsed_sec": 0.0, "mem_percent": 1.0}]}
UNEQUAL = {"snapshot": {"summary": RunningSummary().state(), "columns": {"a": [1, 2], "b": [1]}}}


def journal_of(*lines: Any, **head: Any) -> bytes:
    """Return a journal with a head in which some values are others."""
    return b"\n".join(json.dumps(line).encode() for line in ({**HEAD, **head}, *lines)) + b"\n"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Delivery]:
    """Return what would have been written to MLflow."""
    deliveries: list[Delivery] = []

    def write(delivery: Delivery) -> str:
        deliveries.append(delivery)
        return "a run"

    monkeypatch.setattr(mlflow_perf.publish.recovery, "write_node", write)
    monkeypatch.setattr(mlflow_perf.publish.recovery, "renew_workflows", lambda *_, **__: None)
    return deliveries


def delivery_with(**wrong: Any) -> bytes:
    return journal_of(ROW, delivery={**HEAD["delivery"], **wrong})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(b"", "cannot be read", id="empty"),
        pytest.param(os.urandom(4096), "cannot be read", id="noise"),
        pytest.param(b"[" * 100_000, "cannot be read", id="nested"),
        pytest.param(journal_of(format="mlflow-perf-journal/9"), "journal/9", id="version"),
        pytest.param(delivery_with(artifact_path="../../etc"), "damaged", id="climbing path"),
        pytest.param(delivery_with(artifact_path="/etc"), "damaged", id="absolute path"),
        pytest.param(delivery_with(index=10**400), "damaged", id="huge index"),
        pytest.param(delivery_with(index=-1), "damaged", id="negative index"),
        pytest.param(delivery_with(tags={"a": 1}), "damaged", id="tag"),
        pytest.param(delivery_with(run_id=["x"]), "damaged", id="run id"),
        pytest.param(delivery_with(workspace=7), "damaged", id="workspace"),
        pytest.param(journal_of({"rows": 7}), "damaged", id="rows"),
        pytest.param(journal_of({"rows": [7]}), "damaged", id="row"),
        pytest.param(journal_of({"snapshot": {"summary": 1}}), "damaged", id="snapshot"),
        pytest.param(journal_of(UNEQUAL), "damaged", id="unequal columns"),
        pytest.param(journal_of({"final": {"summary": []}}), "damaged", id="final"),
        pytest.param(journal_of(started="x"), "damaged", id="start"),
        pytest.param(journal_of(facts={"a": "b"}), "damaged", id="facts"),
    ],
)
def test_a_hostile_journal_is_one_line(
    sent: list[Delivery], tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes, says: str
) -> None:
    """It is named, skipped and left where it is; the sound one beside it is recovered."""
    (tmp_path / "bad.journal").write_bytes(data)
    (tmp_path / "good.journal").write_bytes(journal_of(ROW))
    with caplog.at_level(logging.WARNING):
        assert len(list(recover(tmp_path))) == len(sent) == 1
    (line,) = [r.getMessage() for r in caplog.records]
    assert "bad.journal is skipped" in line
    assert says in line
    assert "\n" not in line
    assert len(line) < 400
    assert [path.name for path in tmp_path.iterdir()] == ["bad.journal"]


def test_the_lines_around_a_damaged_one_are_recovered(
    sent: list[Delivery], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says which is damaged."""
    later = json.dumps({"rows": [{"timestamp": 6.0, "elapsed_sec": 5.0, "mem_percent": 1.0}]})
    data = journal_of(ROW) + b'{"rows": [{"elapsed_sec": 3.0, "me\x00\xff\n' + later.encode()
    (tmp_path / "cut.journal").write_bytes(data)
    assert len(list(recover(tmp_path))) == 1
    assert list(sent[0].document.reports["elapsed_sec"]) == [0.0, 5.0]
    (line,) = [r.getMessage() for r in caplog.records]
    assert "cut.journal is cut off or damaged in line 3." in line


def test_a_block_whose_begin_is_damaged_has_begun(sent: list[Delivery], tmp_path: Path) -> None:
    """Its samples show it: a journal with samples is never deleted unsent."""
    head = {key: HEAD[key] for key in ("format", "pid", "boot_id", "delivery", "node", "component")}
    lines = (json.dumps(head), '{"begun": {"started": 1.0,', json.dumps(ROW))
    (tmp_path / "a.journal").write_text("\n".join(lines))
    (found,) = recover_each(tmp_path)
    assert found.outcome == "sent"
    assert sent[0].document.summary


@pytest.mark.parametrize("cut", [b"", b"\n" + json.dumps(ROW).encode()])
def test_a_damaged_end_is_not_called_a_kill(
    sent: list[Delivery], tmp_path: Path, cut: bytes
) -> None:
    """The damage may hide a finished report: the cause is the damage, unless the machine tells."""
    final = journal_of(ROW, {"final": {"status": "FINISHED", "summary": {"duration_sec": 5.0}}})
    (tmp_path / "a.journal").write_bytes(final[:-7] + cut)
    (tmp_path / "b.journal").write_bytes(journal_of(ROW, boot_id="another")[:-7] + cut)
    first, second = recover(tmp_path)
    said = "its journal is damaged in line 3, so how its job ended is not known"
    assert first.cause == sent[0].tags["mlflow_perf.cause"] == said
    assert sent[0].document.extra["cause"] == said
    assert second.cause == "the machine went down"


def test_a_cut_journal_of_a_step_that_finished_is_told(
    sent: list[Delivery], tmp_path: Path
) -> None:
    """Nothing has ended it before its time, so it has no cause; its figures are not whole."""
    (tmp_path / "ended").write_text("FINISHED\n\n")
    (tmp_path / "logs").mkdir()
    note = str(tmp_path / "stopped-1")
    (tmp_path / "a.journal").write_bytes(journal_of(ROW, stop_note=note))
    (found,) = recover(tmp_path)
    assert (found.cause, sent[0].document.status) == ("its journal ends early", "FINISHED")


@pytest.mark.parametrize(
    ("ended", "cause"), [(End("FINISHED"), None), (End("FAILED", "exit code 9"), "exit code 9")]
)
def test_a_journal_that_could_not_be_ended_has_the_known_end(
    sent: list[Delivery], tmp_path: Path, ended: End, cause: str | None
) -> None:
    """The disk was full, and whoever started the job knows how it ended: it was not killed."""
    (tmp_path / "a.journal").write_bytes(journal_of(ROW))
    (found,) = recover(tmp_path, ended=ended)
    assert found.cause == UNWRITTEN
    document = sent[0].document
    assert (document.status, document.extra.get("cause")) == (ended.status, cause)
    assert sent[0].tags.get("mlflow_perf.cause") == cause


def test_the_journal_of_another_host_waits_until_its_job_is_known_to_have_ended(
    sent: list[Delivery], tmp_path: Path
) -> None:
    """On a shared file system its job may be alive; what became of it cannot be seen from here."""
    node = {"index": 1, "hostname": "another-host"}
    (tmp_path / "a.journal").write_bytes(journal_of(ROW, node=node, boot_id="another-boot"))
    assert list(recover(tmp_path)) == []
    (recovered,) = recover(tmp_path, of_any_host=True)
    assert recovered.cause.startswith("the process was killed or ended without a word")
    assert [d.document.node["hostname"] for d in sent] == ["another-host"]
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_gone_is_not_made_anew(
    sent: list[Delivery],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If its sqlite store was deleted, a journal is kept, and no empty store is created."""
    store, folder = tmp_path / "gone.db", tmp_path / "journals"
    folder.mkdir()
    file = folder / "a.journal"
    file.write_bytes(delivery_with(run_id="abc", tracking_uri=f"sqlite:///{store}"))
    assert list(recover(folder)) == []
    assert sent == []
    assert file.exists()
    assert not store.exists()
    assert f"was in {store}, which is not there" in caplog.text
    monkeypatch.setattr(mlflow_perf.publish.recovery, "is_known", lambda *_, **__: False)
    store.touch()
    assert len(list(recover(folder))) == 1


def test_one_sample_says_what_it_saw_at_its_moment() -> None:
    """What it says of a time is of microseconds: zeros and noise that nobody measured."""
    first = {"timestamp": 100.0, "elapsed_sec": 3.6e-06, "job_cpu_sec": 0.0, "job_io_read_mb": 0.0,
             "cpu_pct_per_cpu_avg": 98.0, "job_cpu_cores": 0.0, "mem_percent": 7.0}  # fmt: skip
    delivery, _ = read_journal(journal_of({"rows": [first]}, started=100.0))
    document = delivery.document
    assert document.status == "KILLED"
    assert document.reports["elapsed_sec"] == [0.0]
    of_a_time = ("duration", "cpu", "io_read")
    assert [name for name in document.summary if any(word in name for word in of_a_time)] == []
    assert document.summary["max_t_mem_percent"] == 7.0


def test_a_job_killed_before_its_second_sample_lasted_until_its_last_sign_of_life(
    sent: list[Delivery], tmp_path: Path
) -> None:
    """That is the last sample of its stacks, never `recover`'s time, nor that of a copy."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.journal").write_bytes(
            journal_of(started=1000.0, spool=f"{PREFIX}{name}")
        )
        (tmp_path / f"{PREFIX}{name}").mkdir()
    cell = [1002.5, 0.0, 0, 0.1, 0.1, 1]
    held = {"functions": [], "stacks": [["main", 1, []]], "cells": [cell], "rate_hz": None}
    StackSpool(tmp_path / f"{PREFIX}b", lambda: held).write_all()
    assert len(list(recover(tmp_path))) == 2
    assert [delivery.document.duration_sec for delivery in sent] == [0.0, 2.5]
    assert all(delivery.document.extra["cut_off"] for delivery in sent)
    assert {delivery.tags["mlflow_perf.cut_off"] for delivery in sent} == {"True"}


def test_a_run_that_was_deleted_for_good_says_what_to_do(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its journal can never be sent, and only the user knows whether a backup will bring it."""
    file = tmp_path / "a.journal"
    file.write_bytes(delivery_with(run_id="0" * 32, tracking_uri=store))
    assert list(recover(tmp_path)) == []
    assert file.exists()
    assert (
        f"has no run {'0' * 32} any more; if it was deleted for good, delete the jo" in caplog.text
    )


def test_a_server_that_does_not_listen_is_told_at_once(
    sent: list[Delivery], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It gives up within seconds, keeps the journal, and prints no password."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        uri = f"postgresql://me:secret@127.0.0.1:{bound.getsockname()[1]}/db"
        (tmp_path / "a.journal").write_bytes(delivery_with(run_id="abc", tracking_uri=uri))
        assert list(recover(tmp_path)) == []
    assert "could not be sent and is kept: nothing listens at postgresql://me:***@" in caplog.text
    assert "secret" not in caplog.text
    assert sent == []
    assert (tmp_path / "a.journal").exists()


def test_a_server_that_hangs_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What keeps us waiting for minutes is asked for one journal; those of others are sent."""
    asked: list[str | None] = []

    def write(delivery: Delivery) -> str:
        asked.append(delivery.run.tracking_uri)
        if delivery.run.tracking_uri == "http://hangs":
            raise OSError("no answer")
        if delivery.run.tracking_uri == "http://no-artifacts":
            raise NotUploadedError("its artifacts are not")
        return "a run"

    monkeypatch.setattr(mlflow_perf.publish.recovery, "write_node", write)
    monkeypatch.setattr(mlflow_perf.publish.recovery, "renew_workflows", lambda *_, **__: None)
    monkeypatch.setattr(mlflow_perf.publish.recovery, "has_page", lambda uri: False)
    monkeypatch.setattr(mlflow_perf.publish.recovery_checks, "is_refused", lambda uri: False)
    monkeypatch.setattr(mlflow_perf.publish.recovery, "is_known", lambda *_, **__: False)
    uris = ["hangs", "hangs", "answers", "answers", "no-artifacts", "no-artifacts"]
    for name, uri in enumerate(uris):
        data = delivery_with(run_id="abc", tracking_uri=f"http://{uri}")
        (tmp_path / f"{name}.journal").write_bytes(data)
    assert len(list(recover(tmp_path))) == 2
    assert asked == [f"http://{uri}" for uri in uris[1:]]
    assert len(list(tmp_path.glob("*.journal"))) == 4
    assert caplog.text.count("http://hangs failed: no answer.") == 1
    assert caplog.text.count("its server failed before.") == 1


def test_huge_numbers_become_no_figures(sent: list[Delivery], tmp_path: Path) -> None:
    """Numbers beyond a float, NaN and infinity are left out; the rest is kept."""
    text = '{"rows": [{"elapsed_sec": 1.0, "mem_percent": 1e999, "a": NaN, "b": 1%s}]}'
    data = journal_of(ROW) + (text % ("0" * 400)).encode() + b"\n"
    (tmp_path / "huge.journal").write_bytes(data)
    assert len(list(recover(tmp_path))) == 1
    assert sent[0].document.summary["max_t_mem_percent"] == 1.0
    assert sent[0].document.summary["duration_sec"] == 1.0


def test_the_steps_of_a_killed_job_are_in_its_report(tmp_path: Path) -> None:
    """What its processes had spooled of their loops is in the document and its metrics."""
    steps = StepMetrics()
    steps.spool_to(tmp_path)
    piece = LoopRecord(began=1.0, parts={"input": StepTimes()})
    for times in (piece.step, piece.parts["input"]):
        times.add_all([5_000_000] * 40)
    steps.add("train", piece, 3)
    delivery, _ = read_journal(journal_of(ROW), spooled=tmp_path)
    assert delivery.document.steps["train"]["ranks"]["3"]["step"]["count"] == 40
    assert delivery.document.summary["steps/train/input_pct"] == 100.0


def test_a_spool_folder_outside_is_not_touched(sent: list[Delivery], tmp_path: Path) -> None:
    """A journal that names a folder elsewhere, or a link, does not get it removed."""
    outside = tmp_path / "mlflow-perf-spool-outside"
    outside.mkdir()
    (outside / "x.spool").write_text("")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "mlflow-perf-spool-link").symlink_to(outside)
    for number, name in enumerate(("../mlflow-perf-spool-outside", "mlflow-perf-spool-link", 7)):
        (folder / f"{number}.journal").write_bytes(journal_of(ROW, spool=name))
    assert len(list(recover(folder))) == 3
    assert (outside / "x.spool").exists()


def test_unfinished_files_of_a_dead_process_are_removed(tmp_path: Path) -> None:
    """A file that was to take a journal's place goes when it is old, and not before."""
    journal = new_journal(tmp_path)
    mine = journal.path.with_suffix(BEGUN)
    left = [tmp_path / f"{name}{BEGUN}" for name in ("old", "young")]
    for path in (mine, *left):
        path.write_text("{}")
    for path in (mine, left[0]):
        os.utime(path, (time.time() - 3600,) * 2)
    (tmp_path / f"link{BEGUN}").symlink_to(left[1])
    assert list(recover(tmp_path)) == []
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".journal", *[BEGUN] * 3]
    assert not left[0].exists()
    mine.unlink()
    journal.remove()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["format", "delivery", "node", "component", "started", "counters", "facts", "oom_kills",
     "rows", "snapshot", "summary", "columns", "final", "spool", "boot_id", "index", "tags"]
)  # fmt: skip
LINE = st.dictionaries(KEYS, st.dictionaries(KEYS, JSON) | JSON, max_size=5)


@given(head=st.dictionaries(KEYS, JSON, max_size=3), lines=st.lists(LINE, max_size=4))
def test_any_content_of_a_journal(head: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    """It is a delivery, or a DocumentError of one line, and never another exception."""
    head.pop("format", None)
    try:
        delivery, cause = read_journal(journal_of(*lines, **head))
    except DocumentError as error:
        says = str(error)
    else:
        assert ".." not in delivery.artifact_path.split("/")
        says = cause
    assert len(says.splitlines()) == 1


@given(st.data())
def test_any_bytes_changed_in_a_real_journal(data: st.DataObject) -> None:
    """A bit that flips or a tail that is gone costs at most what comes after it."""
    whole = bytearray(journal_of({"rows": rows(3)}, {"rows": rows(3, 3)}))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        delivery, _ = read_journal(cut)
    except DocumentError as error:
        says = str(error)
    else:
        says = "recovered"
        assert len(delivery.document.reports.get("elapsed_sec", [])) <= 6
    assert len(says.splitlines()) == 1


def test_a_journal_that_another_recover_removes_meanwhile_is_no_fault(
    sent: list[Delivery], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both listed the folder; the other one has sent it."""
    (tmp_path / "a.journal").write_bytes(journal_of(ROW))
    (tmp_path / "b.journal").write_bytes(journal_of(ROW))
    each = recover_each(tmp_path)
    assert next(each).outcome == "sent"
    (tmp_path / "b.journal").unlink()
    assert [one.outcome for one in each] == ["running"]
    assert len(sent) == 1
    assert not caplog.text


def test_the_result_of_each_journal_is_reported(
    sent: list[Delivery], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with those that stay; a file system without locks needs the word of the user."""
    node = {"index": 1, "hostname": "another-host"}
    (tmp_path / "a.journal").write_bytes(journal_of(ROW, node=node))
    (tmp_path / "b.journal").write_bytes(b"damaged")
    (tmp_path / "c.journal").write_bytes(journal_of(ROW))
    told = [(one.journal, one.outcome) for one in recover_each(tmp_path)]
    assert told == [("a.journal", "other host"), ("b.journal", "kept"), ("c.journal", "sent")]

    def lockf(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    assert [one.outcome for one in recover_each(tmp_path)] == ["running", "running"]
    outcomes = [one.outcome for one in recover_each(tmp_path, of_any_host=True)]
    assert outcomes == ["sent", "kept"]
    assert len(sent) == 2


def test_a_journal_that_its_job_could_not_delete_goes_without_a_word(
    sent: list[Delivery], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its job had sent everything: nothing is sent or told, and its spool folder goes too."""
    folder = tmp_path / "mlflow-perf-spool-x"
    folder.mkdir()
    (folder / "x.spool").write_text("")
    (tmp_path / "a.journal").write_bytes(journal_of(removed=True, spool=folder.name))
    assert list(recover_each(tmp_path)) == []
    assert (sent, caplog.text, list(tmp_path.iterdir())) == ([], "", [])


@pytest.mark.parametrize("here", ["", "team-b"])
def test_each_journal_is_sent_to_the_workspace_of_its_job(
    here: str, sent: list[Delivery], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this thread works there, and no longer than for that journal.

    A job without a workspace had the server's default one, which has this name.
    """
    pytest.importorskip("mlflow.utils.workspace_context")
    monkeypatch.setenv("MLFLOW_WORKSPACE", here)
    seen: list[tuple[str, str]] = []

    def write(delivery: Delivery) -> str:
        elsewhere = BackgroundCall(read_workspace, name="other").result(30)
        seen.append((read_workspace(), elsewhere))
        return f"run in {read_workspace()}"

    renewed: list[tuple[str, list[tuple[str, str]]]] = []
    monkeypatch.setattr(mlflow_perf.publish.recovery, "write_node", write)
    monkeypatch.setattr(
        mlflow_perf.publish.recovery,
        "renew_workflows",
        lambda runs, **_: renewed.append((read_workspace(), runs)),
    )
    for name, known in (
        ("a", {"workspace": "team-a"}), ("b", {"workspace": "team-b"}), ("c", {"workspace": ""}),
        ("old", {}),
    ):  # fmt: skip
        (tmp_path / f"{name}.journal").write_bytes(delivery_with(**known))
    assert len(list(recover(tmp_path))) == 4
    default = "default" if here else ""
    assert seen == [("team-a", here), ("team-b", here), (default, here), (here, here)]
    assert read_workspace() == os.environ["MLFLOW_WORKSPACE"] == here
    assert ("team-a", [("", "run in team-a")]) in renewed


def test_a_journal_of_an_older_program_goes_to_the_given_workspace(
    sent: list[Delivery], tmp_path: Path
) -> None:
    """It does not say where its job worked, so the caller does."""
    (tmp_path / "old.journal").write_bytes(delivery_with())
    (tmp_path / "new.journal").write_bytes(delivery_with(workspace=""))
    assert len(list(recover_each(tmp_path, workspace="team-a"))) == 2
    assert [one.run.workspace for one in sent] == ["", "team-a"]


@pytest.mark.parametrize("name", ["../x", "a\r\nX-Other: 1", "x" * 500, "ümlaut"])
def test_a_forged_workspace_is_sent_nowhere(
    name: str, sent: list[Delivery], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow would put it into a header of each request; its server gets the other journals."""
    pytest.importorskip("mlflow.utils.workspace_context")
    monkeypatch.setattr(mlflow_perf.publish.recovery_checks, "is_refused", lambda _: False)
    monkeypatch.setattr(mlflow_perf.publish.recovery, "has_page", lambda _: False)
    for file, workspace in (("a", name), ("b", "team-a")):
        journal = delivery_with(workspace=workspace, tracking_uri="http://mlflow.here")
        (tmp_path / f"{file}.journal").write_bytes(journal)
    assert [one.outcome for one in recover_each(tmp_path)] == ["kept", "sent"]
    assert [one.run.workspace for one in sent] == ["team-a"]
