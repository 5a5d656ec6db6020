"""The journal and its recovery: what a killed job reported is logged, and nothing else touched."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from tests.alone import alone
from tests.interrupted import check_each_line

import mlflow_perf
from mlflow_perf.cli import main
from mlflow_perf.core import file_patience, originals
from mlflow_perf.core.thread_list import list_threads
from mlflow_perf.errors import DocumentError
from mlflow_perf.model.columns import lookup_kind
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.model.series import BoundedSeries
from mlflow_perf.model.summary import RunningSummary
from mlflow_perf.publish.delivery_queue import LateJournal
from mlflow_perf.publish.journal import FORMAT, Journal
from mlflow_perf.publish.journal_facts import JournalFacts
from mlflow_perf.publish.recovery import read_journal, recover
from mlflow_perf.records import Kind
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.run_handle import RunHandle

FACTS = JournalFacts(started=1000.0, counters=["pages"], facts={"node_count": 1.0})


def rows(count: int, begin: int = 0) -> list[dict[str, float]]:
    """Return reports of one second each."""
    return [
        {
            "timestamp": 1000.0 + n,
            "elapsed_sec": float(n),
            "mem_percent": float(n % 50),
            "pages": 2.0 * n,
        }
        for n in range(begin, begin + count)
    ]


def new_delivery() -> Delivery:
    """Return the report of a job called train."""
    document = NodeDocument(node={"index": 0, "hostname": socket.gethostname()}, component="train")
    run = RunHandle(run_name="train")
    return Delivery(document, run, tags={"mlflow_perf.component": "train"})


def new_journal(folder: Path, **options: Any) -> Journal:
    """Return its journal."""
    return Journal(new_delivery(), FACTS, folder=folder, **options)


def test_flushed_samples_are_recovered(tmp_path: Path) -> None:
    """Rows on disk become the document and summary that the job itself would have made."""
    journal = new_journal(tmp_path)
    for row in rows(10):
        journal.append(row)
    journal.flush()
    delivery, cause = read_journal(journal.path.read_bytes())
    document = delivery.document
    assert document.summary["duration_sec"] == 9.0
    assert document.summary["total_pages"] == 18.0
    assert document.summary["max_t_mem_percent"] == 9.0
    assert document.summary["node_count"] == 1.0
    assert document.status == "KILLED"
    assert document.started == 1000.0
    assert document.reports["mem_percent"] == [float(n) for n in range(10)]
    assert delivery.tags["mlflow_perf.component"] == "train"
    assert delivery.tags["mlflow_perf.status"] == "KILLED"
    assert "killed" in cause
    journal.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_long_job_has_a_journal_of_bounded_size_and_exact_figures(tmp_path: Path) -> None:
    """Shortening keeps totals, peaks and shares exact, however often it happens."""

    def kind(name: str) -> Kind:
        return Kind.COUNTER if name == "pages" else lookup_kind(name)

    series, summary = BoundedSeries(100, kind=kind), RunningSummary(kind=kind)

    def snapshot() -> dict[str, object]:
        return {"summary": summary.state(), "columns": series.columns()}

    journal = new_journal(tmp_path, snapshot=snapshot, max_rows=100)
    sizes = []
    for row in rows(5000):
        row["cpu_pct_per_cpu_avg"] = 90.0 if row["elapsed_sec"] % 4 < 1 else 10.0
        series.append(row)
        summary.add(row)
        journal.append(row)
        if row["elapsed_sec"] % 10 == 0:
            journal.flush()
            sizes.append(journal.path.stat().st_size)
    journal.flush()
    assert max(sizes[len(sizes) // 2 :]) <= 1.2 * max(sizes[: len(sizes) // 2])
    recovered = read_journal(journal.path.read_bytes())[0].document.summary
    for key, value in summary.metrics().items():
        assert recovered[key] == pytest.approx(value), key
    journal.remove()


def test_a_torn_line_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The others are recovered, and one line says so."""
    journal = new_journal(tmp_path)
    journal.append(rows(1)[0])
    journal.flush()
    data = journal.path.read_bytes()
    delivery, _ = read_journal(data + b'{"rows": [{"elapsed_sec": 5.0, "mem', name="x.journal")
    assert len(delivery.document.reports["elapsed_sec"]) == 1
    assert "x.journal is cut off or damaged in line 3" in caplog.text
    journal.remove()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x00\xff", b"[]\n", b'{"format": "mlflow-perf-journal/9"}\n', b"{" * 10_000,
        json.dumps({"format": FORMAT, "delivery": {"artifact_path": "../x", "tags": {}}}).encode(),
        json.dumps({"format": FORMAT, "delivery": {"index": "x", "tags": {}}, "node": {}}).encode(),
        json.dumps({"format": FORMAT, "delivery": [], "node": 7}).encode(),
        json.dumps({"format": FORMAT, "delivery": {"index": 0, "tags": {}}, "node": {}}).encode()
        + b'\n{"rows": 7}',
        json.dumps({"format": FORMAT, "delivery": {"index": 0, "tags": {}}, "node": {}}).encode()
        + b'\n{"snapshot": {"summary": {}, "columns": {}}}',
    ],
)  # fmt: skip
def test_hostile_journals_are_refused(data: bytes) -> None:
    """Whatever is not a sound journal is a DocumentError, never another exception."""
    with pytest.raises(DocumentError):
        read_journal(data)


def test_links_and_strangers_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A link is not followed and a folder is not a journal; both are left alone."""
    secret = tmp_path / "secret"
    secret.write_text("x")
    folder = tmp_path / "journals"
    folder.mkdir()
    (folder / "a.journal").symlink_to(secret)
    (folder / "b.journal").mkdir()
    (folder / "c.journal").write_bytes(b"junk")
    assert list(recover(folder)) == []
    assert secret.read_text() == "x"
    assert len([r for r in caplog.records if "skipped" in r.message]) == 3
    assert sorted(p.name for p in folder.iterdir()) == ["a.journal", "b.journal", "c.journal"]


def test_a_place_that_cannot_be_written_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a journal the recording goes on."""
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        journal = new_journal(tmp_path / "file")
        journal.start()
        journal.append(rows(1)[0])
        journal.flush()
        journal.remove()
    assert not journal.alive
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("least_sec", "count"), [(60.0, 0), (0.0, 1)])
def test_a_short_block_needs_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least_sec: float, count: int
) -> None:
    """The journal's thread starts with the first report after a second."""
    monkeypatch.setattr("mlflow_perf.publish.journal._LEAST_SEC", least_sec)
    journal = new_journal(tmp_path)
    journal.start()
    journal.append(rows(1)[0])
    names = [thread.name for thread in list_threads()]
    journal.remove()
    assert names.count("mlflow-perf-journal") == count


KILLED = """
import os, sys, time, mlflow_perf
with mlflow_perf.report("train", interval=0.05) as perf:
    perf.add_counter("rows", 7)
    print(perf.run_id, flush=True)
    time.sleep(0.5)
    from mlflow_perf.session.report import current
    current()._recording._journal.flush()
    print("flushed", flush=True)
    time.sleep(60)
"""


@pytest.mark.e2e
def test_a_killed_job_is_recovered_once(store: str, tmp_path: Path) -> None:
    """After SIGKILL, recover logs metrics and artifacts and closes the run, once."""
    job = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    run_id = job.stdout.readline().strip()
    assert job.stdout.readline().strip() == "flushed"
    alive = CliRunner().invoke(main, ["recover", "--json"])
    assert json.loads(alive.stdout) == [], "the journal of a live job is left alone"
    job.send_signal(signal.SIGKILL)
    job.wait(10)
    job.stdout.close()
    result = CliRunner().invoke(main, ["recover", "--json"])
    (recovered,) = json.loads(result.stdout)
    assert recovered["run_id"] == run_id
    assert recovered["node"] == 0
    run = MlflowClient().get_run(run_id)
    assert run.info.status == "KILLED"
    assert "killed" in run.data.tags["mlflow_perf.cause"]
    assert " Killed · [Report]" in run.data.tags["mlflow.note.content"]
    assert "Duration **" in run.data.tags["mlflow.note.content"]
    assert run.data.metrics["duration_sec"] > 0.4
    assert run.data.metrics["ops/rows/count"] == 7.0
    assert mlflow_perf.load(run_id).nodes[0].status == "KILLED"
    again = CliRunner().invoke(main, ["recover", "--json"])
    assert json.loads(again.stdout) == []
    assert os.listdir(os.environ["MLFLOW_PERF_DIR"]) == []


def test_recover_says_when_there_is_nothing(tmp_path: Path) -> None:
    """An empty folder is no error; a missing folder is bad input."""
    assert "Nothing to recover" in CliRunner().invoke(main, ["recover", str(tmp_path)]).output
    (tmp_path / "a.journal").write_text("damaged")
    kept = CliRunner().invoke(main, ["recover", str(tmp_path)])
    assert "still holds 1 journal." in kept.output
    assert kept.exit_code == 2, "`recover && rm -r` must not delete it"
    wrong = CliRunner().invoke(main, ["recover", str(tmp_path / "no")])
    assert wrong.exit_code == 2
    assert "is no folder" in wrong.output


def test_an_unsent_report_is_sent_later(
    store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a job kept because its server was away arrives whole with recover."""
    import mlflow

    monkeypatch.setenv("MLFLOW_PERF_EXIT_TIMEOUT", "0.1")
    mlflow.set_tracking_uri(None)  # type: ignore[arg-type]  # it takes the variable away, too
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with mlflow_perf.report("train") as perf:
        time.sleep(0.02)
    folder = Path(os.environ["MLFLOW_PERF_DIR"])
    (journal,) = folder.glob("*.journal")
    journal.write_text(journal.read_text().replace("http://127.0.0.1:9", store))
    (recovered,) = list(recover())
    run = MlflowClient(store).get_run(str(recovered.run_id))
    assert run.data.metrics["duration_sec"] == pytest.approx(perf.summary["duration_sec"])
    assert run.info.status == "FINISHED"
    # The run began and ended when the job did, not when its report was sent.
    started = perf.document.nodes[0].started
    assert started is not None
    assert run.info.start_time == pytest.approx(1000 * started, abs=2)
    assert run.info.end_time == pytest.approx(
        1000 * (started + perf.summary["duration_sec"]), abs=2
    )
    assert "could not be reached" in recovered.cause
    assert "mlflow_perf.cause" not in run.data.tags, "that is why a block ended early"


def test_a_journal_that_was_tidied_away_comes_back(tmp_path: Path) -> None:
    """Who cleans the folder during the job costs it nothing but the next few seconds."""
    series = BoundedSeries(100)

    def snapshot() -> dict[str, object]:
        return {"summary": RunningSummary().state(), "columns": series.columns()}

    journal = new_journal(tmp_path / "state", snapshot=snapshot)
    journal.append(rows(1)[0])
    series.append(rows(1)[0])
    journal.flush(sync=True)
    journal.path.unlink()
    journal.path.parent.rmdir()
    journal.flush(sync=True)
    document = read_journal(journal.path.read_bytes())[0].document
    assert document.reports["elapsed_sec"] == [0.0]
    journal.remove()


def test_the_journal_of_this_process_is_never_recovered(tmp_path: Path) -> None:
    """Recovering inside a job leaves its own journal alone, and locked."""
    journal = new_journal(tmp_path)
    assert list(recover(tmp_path)) == []
    assert journal.path.exists()
    journal.remove()


def test_a_report_that_was_sent_is_not_kept_a_moment_later(tmp_path: Path) -> None:
    """Sending removes the journal in its own thread; no second one is made after that."""
    journal = Journal(Delivery(), JournalFacts(), folder=tmp_path)
    journal.remove()
    assert not journal.secure(Delivery())
    assert list(tmp_path.iterdir()) == []


def test_a_journal_that_is_made_when_its_report_was_sent_does_not_stay(tmp_path: Path) -> None:
    """A short run's report is put on the disk after half a second, maybe just when it was sent."""
    late = LateJournal(lambda: new_journal(tmp_path))
    late.remove()
    assert not late.secure(Delivery())
    assert list(tmp_path.iterdir()) == []


def test_a_journal_without_a_descriptor_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may have used up its numbers just after the file was opened."""

    def refuse(opener: Callable[..., int], *arguments: object) -> None:
        os.close(opener(*arguments))
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("mlflow_perf.publish.journal.OwnDescriptor", refuse)
    assert not new_journal(tmp_path).alive
    assert list(tmp_path.iterdir()) == []


@alone
def test_no_journal_stays_wherever_an_alarm_raises_in_its_making(tmp_path: Path) -> None:
    """Neither the file nor the one that is about to replace it stays, nor a descriptor."""
    made: list[Journal] = []

    def remove() -> None:
        while made:
            made.pop().remove()
        assert list(tmp_path.iterdir()) == []

    assert check_each_line(lambda: made.append(new_journal(tmp_path)), remove) > 50


def test_a_forked_child_lets_go_of_the_journal(tmp_path: Path) -> None:
    """The child holds no descriptor of it, and neither writes nor removes it."""
    journal = new_journal(tmp_path)
    size = journal.path.stat().st_size
    pid = os.fork()
    if pid == 0:
        journal.append(rows(1)[0])
        journal.flush()
        journal.remove()
        os._exit(0 if journal._file is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert journal.path.stat().st_size == size
    journal.remove()
    assert list(tmp_path.iterdir()) == []


def refuse_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no journal be written any more, as beyond the limit of a file's size."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(Journal, "_write", refuse)


@pytest.mark.parametrize("figures_sent", [False, True])
def test_a_journal_that_does_not_take_the_report_stays_only_for_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures_sent: bool
) -> None:
    """Where MLflow has them, `recover` would call the job killed, which ended well."""
    journal = new_journal(tmp_path)
    refuse_writes(monkeypatch)
    assert not journal.keep(Delivery(), unsent="away", figures_sent=figures_sent)
    assert journal.path.exists() is not figures_sent


def test_a_report_that_is_in_the_journal_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only the reason cannot be added, it is kept nevertheless."""
    journal = new_journal(tmp_path)
    assert journal.secure(Delivery(NodeDocument(component="train", status="FINISHED")))
    refuse_writes(monkeypatch)
    assert journal.keep(Delivery(), unsent="away", figures_sent=True)
    assert read_journal(journal.path.read_bytes())[0].document.status == "FINISHED"


def _call_once_answered(answers: threading.Event, call: Callable[..., Any], *args: Any) -> Any:
    answers.wait()
    return call(*args)


def test_a_file_system_that_does_not_answer_holds_up_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a network's may: neither where a block begins, nor where it ends."""
    answers = threading.Event()
    monkeypatch.setattr(file_patience, "is_remote", lambda _: True)
    monkeypatch.setattr(file_patience, "_PATIENCE_SEC", 0.05)
    delivery = new_delivery()
    begun = Journal(delivery, FACTS, folder=tmp_path / "a")
    for call in ("open", "write", "replace", "unlink", "fsync"):
        hang = partial(_call_once_answered, answers, getattr(originals.os, call))
        monkeypatch.setattr(originals.os, call, hang)
    begun.start(JournalFacts(started=1.0))
    begun.note_run()
    begun.note_end("FINISHED", None)
    assert not begun.keep(delivery)
    begun.remove()
    other = new_journal(tmp_path / "b")
    assert not other.alive
    other.remove()
    assert len(caplog.messages) == 2
    answers.set()
